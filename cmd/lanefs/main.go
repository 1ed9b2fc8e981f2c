package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

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
	args, err := helperArgs(argv)
	if err == nil {
		root.SetArgs(args)
		err = root.Execute()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "lanefs:", oneLine(err))
		return 1
	}
	return 0
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "lanefs",
		Short:         "ext4 in user space, moved by GPU lanes over NVMe",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetFlagErrorFunc(flagError)
	root.SetVersionTemplate("lanefs {{.Version}}\n")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetHelpCommand(helpCommand())
	root.AddCommand(mountCommand(), umountCommand(), statCommand(), topCommand(), checkCommand(), identifyCommand(), bindCommand(), unbindCommand(), vramCommand(), doctorCommand(), versionCommand())
	return root
}

// flagError names the flag and its value, as errors of -o name the option.
func flagError(_ *cobra.Command, err error) error {
	var bad *pflag.InvalidValueError
	if errors.As(err, &bad) && bad.Unwrap() != nil {
		return fmt.Errorf("--%s %q: %w", bad.GetFlag().Name, bad.GetValue(), bad.Unwrap())
	}
	return err
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
