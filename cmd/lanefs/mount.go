package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/mountopt"
	"github.com/lanefs/lanefs/fs"
)

func mountCommand() *cobra.Command {
	var cfg mountConfig
	var options, flags []string // of -o, and of flags that mirror options
	var timeout time.Duration
	var fake, sloppy bool
	c := &cobra.Command{
		Use:   "mount [flags] DEVICE DIR",
		Short: "mount the ext4 volume on DEVICE at DIR",
		Long: `Mounts the ext4 volume on DEVICE at DIR. DEVICE is an image file, a block device or an NVMe function's PCI address,
or LABEL=, UUID=, PARTLABEL=, PARTUUID= or ID= of one, as with mount(8). ADDR/NSID is a namespace of a function, and DEVICE-partN a partition (GPT or DOS). DEVICE,DEVICE,… are the members of a Linux md array
of level raid0 or linear, in any order; with pN behind them partition N of the array is meant. The command returns 0 once the mount answers. The daemon that serves the mount goes to
the background unless --foreground is given. Root can mount a volume that LaneFS has mounted already once more, at another DIR.`,
		Args: exactly("DEVICE DIR"),
		RunE: func(c *cobra.Command, args []string) error {
			if sloppy {
				options = mountopt.Known(options...)
			}
			if list, ok := remountOptions(options); ok {
				return remount(args[1], list, fake)
			}
			if err := cfg.set(args[0], args[1], append(options, flags...)); err != nil {
				return err
			}
			if fake {
				return nil
			}
			second, err := cfg.await(timeout, c.ErrOrStderr())
			if err != nil {
				return err
			}
			if err := fs.CheckMountPoint(cfg.Dir); err != nil {
				return err
			}
			if second != nil {
				return cfg.mountSecond(second)
			}
			if cfg.Foreground {
				return serve(&cfg, inForeground(c.ErrOrStderr()))
			}
			return startDaemon(&cfg, c.ErrOrStderr())
		},
	}
	f := c.Flags()
	f.BoolVarP(&cfg.Foreground, "foreground", "f", false, "stay in the foreground and log to stderr")
	mountopt.AddFlags(f, &flags, "gpu", "memory-mode", "vram")
	f.DurationVar(&timeout, "timeout", previousTimeout, "how long to wait for an earlier mount of DEVICE, or at DIR, that is ending")
	f.StringArrayVarP(&options, "options", "o", nil, "mount `OPTIONS`, separated by commas")
	f.BoolVar(&fake, "fake", false, "check the arguments and mount nothing")
	f.BoolVar(&sloppy, "sloppy", false, "ignore unknown mount options")
	_, _ = f.MarkHidden("fake"), f.MarkHidden("sloppy") // for mount -f and -s
	_ = c.RegisterFlagCompletionFunc("options", completeOptions)
	for _, name := range []string{"gpu", "memory-mode"} {
		_ = c.RegisterFlagCompletionFunc(name, completeValues(name))
	}
	c.SetHelpTemplate(c.HelpTemplate() + "\n" + mountopt.Help())
	return c
}

// set fills the configuration from the command line and checks what can be checked without opening anything.
func (c *mountConfig) set(device, dir string, options []string) error {
	c.Config = mountopt.Default()
	if err := mountopt.Parse(&c.Config, options...); err != nil {
		return usage(err)
	}
	if err := c.Check(); err != nil {
		return usage(err)
	}
	var err error
	if c.Log != "" {
		if c.Log, err = absolute(c.Log); err != nil {
			return err
		}
	}
	if err := c.take(device); err != nil {
		return err
	}
	if c.Dir, err = resolveDir(dir); err != nil {
		return err
	}
	if err := c.checkNames(); err != nil {
		return err
	}
	return c.checkOwnFiles()
}

// exactly checks the number of arguments and says what they are.
func exactly(want string) cobra.PositionalArgs {
	n := 1
	for _, r := range want {
		if r == ' ' {
			n++
		}
	}
	return func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return fmt.Errorf("%s: want %s", c.Name(), want)
		}
		if len(args) != n {
			return fmt.Errorf("%s: want %s, got %q", c.Name(), want, args)
		}
		return nil
	}
}
