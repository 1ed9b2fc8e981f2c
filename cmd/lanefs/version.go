package main

import (
	"cmp"
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// built is the version that make builds with: git describe. Without it the version is that of the module, as go install has it.
var built string

var version = versionOf(built, debug.ReadBuildInfo)

func versionOf(built string, info func() (*debug.BuildInfo, bool)) string {
	module := ""
	if b, ok := info(); ok && b.Main.Version != "(devel)" {
		module = b.Main.Version
	}
	return cmp.Or(built, module, "unknown")
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "print the version",
		Args:  cobra.NoArgs,
		Run:   func(c *cobra.Command, _ []string) { fmt.Fprintln(c.OutOrStdout(), "lanefs", version) },
	}
}
