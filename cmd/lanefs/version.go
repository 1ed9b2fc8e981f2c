package main

import (
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// release is the version of this source, the newest of docs/CHANGELOG.md.
const release = "0.1.0"

// built is the commit that make builds from: git describe. Without it, or git, the binary has its release alone, or the version of the
// module, as go install has it.
var built string

var version = versionOf(built, debug.ReadBuildInfo)

// versionOf is the release, and what exactly was built if that is known: "0.1.0 (17a715b)".
func versionOf(built string, info func() (*debug.BuildInfo, bool)) string {
	exact := built
	if b, ok := info(); ok && exact == "" && b.Main.Version != "(devel)" {
		exact = b.Main.Version
	}
	if exact == "" || exact == "v"+release {
		return release
	}
	return fmt.Sprintf("%s (%s)", release, exact)
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "print the version",
		Args:  exactly0,
		Run:   func(c *cobra.Command, _ []string) { fmt.Fprintln(c.OutOrStdout(), "lanefs", version) },
	}
}
