package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/lanefs/lanefs/fs"
)

func mountCommand() *cobra.Command {
	var cfg mountConfig
	var options []string
	var gpu, memory string
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "mount [flags] DEVICE DIR",
		Short: "mount the ext4 volume on DEVICE at DIR",
		Long: `Mounts the ext4 volume on DEVICE, an image file or an NVMe function's PCI address, at DIR. The command returns 0 once the mount answers; the
process that serves it goes to the background unless --foreground is given. What LaneFS has mounted already is mounted once more
at DIR, by root.`,
		Args: exactly("DEVICE DIR"),
		RunE: func(c *cobra.Command, args []string) error {
			if memory != "" {
				options = append(options, "memory-mode="+memory)
			}
			if err := checkVRAM(cfg.VRAM); err != nil {
				return fmt.Errorf("--vram %q: %w", cfg.VRAM, err)
			}
			if err := cfg.set(args[0], args[1], gpu, options); err != nil {
				return err
			}
			second, err := cfg.await(timeout, c.ErrOrStderr())
			if err != nil {
				return err
			}
			if err := fs.CheckMountPoint(cfg.Dir); err != nil {
				return err
			}
			if second != nil {
				return cfg.mountAgain(second)
			}
			if cfg.Foreground {
				return serve(&cfg, foreground{out: c.ErrOrStderr()})
			}
			return startDaemon(&cfg)
		},
	}
	f := c.Flags()
	f.BoolVarP(&cfg.Foreground, "foreground", "f", false, "stay in the foreground and log to stderr")
	f.StringVar(&memory, "memory-mode", "", "what is in device memory: auto, or a sum of 1 submission queues, 2 completion queues, 4 the bridge's doorbells, 8 data (default auto)")
	f.StringVar(&cfg.VRAM, "vram", "", "with --gpu host: the PCI function whose BAR is the device memory, as ADDR or ADDR/BAR")
	f.StringVar(&gpu, "gpu", "", "what runs the lanes: auto, host, hip or cuda (default auto)")
	f.DurationVar(&timeout, "timeout", earlierTimeout, "how long to wait for an earlier mount of DEVICE, or at DIR, that is ending")
	f.StringArrayVarP(&options, "options", "o", nil, "mount options, separated by commas")
	return c
}

// set fills the configuration from the command line and checks what can be checked without opening anything.
func (c *mountConfig) set(device, dir, gpu string, options []string) error {
	c.Pool = -1
	if err := parseOptions(c, options); err != nil {
		return err
	}
	if gpu != "" {
		c.GPU = gpu
		if err := checkGPU(gpu); err != nil {
			return fmt.Errorf("--gpu %q: %w", gpu, err)
		}
	}
	if c.NoRecovery && !c.ReadOnly {
		return errors.New("option \"norecovery\" needs \"ro\": a journal that was not replayed must not be written over")
	}
	if c.WriteBack && c.strictAtime() {
		return errors.New("options \"strictatime\" and \"writeback_cache\" exclude one another: each read is to be asked of a file that the kernel keeps to itself")
	}
	var err error
	if c.Log != "" {
		if c.Log, err = filepath.Abs(c.Log); err != nil {
			return err
		}
	}
	if c.Device, err = resolveDevice(device); err != nil {
		return err
	}
	c.Dir, err = resolveDir(dir)
	return err
}

// strictAtime: every read changes the access time.
func (c *mountConfig) strictAtime() bool { return slices.Contains(c.Kernel, "strictatime") }

// exactly checks the number of arguments and says what they are.
func exactly(want string) cobra.PositionalArgs {
	n := 1
	for _, r := range want {
		if r == ' ' {
			n++
		}
	}
	return func(c *cobra.Command, args []string) error {
		if len(args) != n {
			return fmt.Errorf("%s: want %s, got %q", c.Name(), want, args)
		}
		return nil
	}
}
