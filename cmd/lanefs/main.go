package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	_ "github.com/lanefs/lanefs/cmd/lanefs/internal/descriptors" // before go-fuse
	"github.com/lanefs/lanefs/fs/share/gate"
)

func main() {
	gate.RunIfChild() // a daemon starts this program again to receive its clients' descriptors
	if conf, ok := os.LookupEnv(daemonEnv); ok {
		os.Exit(daemonMain(conf))
	}
	os.Exit(run(os.Args))
}

// run is main without the exit: it returns the status.
func run(argv []string) int {
	root := rootCommand()
	out := &output{file: os.Stdout}
	root.SetOut(out)
	command := root
	args, err := helperArgs(argv)
	if err == nil {
		root.SetArgs(args)
		command, err = root.ExecuteC()
	}
	err = out.with(err)
	if text := errorText(err); text != "" {
		fmt.Fprintln(os.Stderr, "lanefs:", text)
	}
	return status(argv[0], command, err)
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return oneLine(err) + limitWords(err)
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "lanefs",
		Short:         "ext4 in user space, moved by GPU lanes over NVMe",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          subcommand,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetFlagErrorFunc(flagError)
	root.SetVersionTemplate("lanefs {{.Version}}\n")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetHelpCommand(helpCommand())
	for _, command := range []func() *cobra.Command{
		mountCommand, umountCommand, statCommand, topCommand, traceCommand, checkCommand, identifyCommand, rawCommand, benchCommand, proveCommand, bindCommand, unbindCommand, vramCommand, runCommand,
		doctorCommand, versionCommand,
	} {
		root.AddCommand(command())
	}
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" { // cobra's, which takes any name for a wish for help
			c.Args, c.RunE = subcommand, func(c *cobra.Command, _ []string) error { return c.Help() }
		}
	}
	checkUsage(root)
	return root
}

// oneLine is an error as one line: errors.Join puts each on its own.
func oneLine(err error) string {
	var parts []string
	for line := range strings.Lines(err.Error()) {
		if line = strings.TrimSpace(line); line != "" {
			parts = append(parts, line)
		}
	}
	return strings.Join(parts, "; ")
}
