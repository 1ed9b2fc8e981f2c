// Command lanefs mounts an ext4 volume in user space, its data moved by NVMe queue pairs that kernels own.
//
// A mount is a process of its own, the daemon: `lanefs mount` starts it, waits until the mount answers, and returns. The
// daemon holds the stack (stack.go), listens on a control socket (control.go) and ends when the mount is gone.
// `lanefs umount` and `lanefs stat` talk to it there.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lanefs/lanefs/fs/share/gate"
)

// version is set by the build.
var version = "unknown"

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
	root.SetArgs(asHelper(argv))
	if err := root.Execute(); err != nil {
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
	root.AddCommand(mountCommand(), umountCommand(), statCommand(), checkCommand(), identifyCommand(), bindCommand(), unbindCommand(), vramCommand(), doctorCommand(), versionCommand())
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

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "print the version",
		Args:  cobra.NoArgs,
		Run:   func(c *cobra.Command, _ []string) { fmt.Fprintln(c.OutOrStdout(), "lanefs", version) },
	}
}

// asHelper makes arguments of `lanefs` from those of a mount helper. mount(8) with type fuse.lanefs runs `lanefs DEVICE DIR
// -o …`, DEVICE as it was given and DIR absolute, and runs a link named mount.lanefs with the same and a few flags that mean nothing here.
func asHelper(argv []string) []string {
	args := argv[1:]
	if strings.HasPrefix(filepath.Base(argv[0]), "mount.") {
		return append([]string{"mount"}, withoutHelperFlags(args)...)
	}
	if len(args) >= 2 && strings.Contains(args[0], "/") && strings.Contains(args[1], "/") ||
		len(args) >= 4 && args[0] != "mount" && filepath.IsAbs(args[1]) && args[2] == "-o" {
		return append([]string{"mount"}, args...)
	}
	return args
}

// withoutHelperFlags drops what mount(8) tells every helper: -n (no mtab), -s (sloppy), -v (verbose), -t TYPE.
func withoutHelperFlags(args []string) []string {
	var out []string
	for i := 0; i < len(args); i++ {
		switch args[i] {
		case "-n", "-s", "-v":
		case "-t":
			i++
		default:
			out = append(out, args[i])
		}
	}
	return out
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
