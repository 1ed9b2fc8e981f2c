package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/mountopt"
	"github.com/lanefs/lanefs/fs"
)

func rawCommand() *cobra.Command {
	var cfg mountConfig
	var options, flags []string
	var readOnly bool
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "raw [flags] DEVICE FILE",
		Short: "show DEVICE as a file, for mkfs.ext4, e2fsck, dd and the like",
		Long: `Mounts DEVICE itself on FILE, a regular file, which is created if it does not exist. FILE then has the device's contents. So
mkfs.ext4, e2fsck, debugfs, dd and fio work through lanes on a function that is bound to user space. fsync(2) flushes the
device. FILE keeps its size, as a block device does: O_TRUNC does nothing. Meanwhile nothing else can open DEVICE, and it cannot be
mounted. "lanefs umount FILE" ends it. A file cannot say how large the device's blocks are: where they have more than 512 bytes tell programs that
would ask a block device (mkfs.ext4 -b 4096, fdisk -b 4096). fallocate -p on FILE zeroes a range and gives
its space back to the device. Of the mount options, those of the lanes, ro and metrics= apply. The members of
an md array, separated by commas, are shown as the array; a single member is shown as it is.`,
		Args: exactly("DEVICE FILE"),
		RunE: func(c *cobra.Command, args []string) (failed error) {
			if args[1] == "" {
				return usage(errors.New("FILE is an empty name"))
			}
			if _, err := os.Lstat(args[1]); errors.Is(err, os.ErrNotExist) {
				f, err := os.OpenFile(args[1], os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
				if err != nil {
					return fmt.Errorf("%q cannot be created: %w", args[1], reason(err))
				}
				f.Close()
				defer func() {
					if failed != nil {
						_ = os.Remove(args[1]) // what is empty is not the device; EBUSY if it is shown after all
					}
				}()
			}
			if readOnly {
				options = append(options, "ro")
			}
			if err := cfg.set(args[0], args[1], append(options, flags...)); err != nil {
				return err
			}
			cfg.Raw = true
			second, err := cfg.await(timeout, c.ErrOrStderr())
			if err != nil {
				return err
			}
			if second != nil {
				return fmt.Errorf("device %q is in use: process %d has it at %q; lanefs umount %s first", cfg.Device, second.PID, second.Dir, second.Dir)
			}
			if err := fs.CheckRawPoint(cfg.Dir); err != nil {
				return err
			}
			for _, one := range cfg.units() {
				if st, err := os.Stat(one.Device); err == nil {
					if at, err := os.Stat(cfg.Dir); err == nil && os.SameFile(st, at) {
						return fmt.Errorf("%q is the device itself: name another file", filepath.Base(cfg.Dir))
					}
				}
			}
			if cfg.Foreground {
				return serveRaw(&cfg, inForeground(c.ErrOrStderr()))
			}
			return startDaemon(&cfg, c.ErrOrStderr())
		},
	}
	f := c.Flags()
	f.BoolVarP(&cfg.Foreground, "foreground", "f", false, "stay in the foreground and log to stderr")
	f.BoolVarP(&readOnly, "read-only", "r", false, "refuse writes")
	mountopt.AddFlags(f, &flags, "gpu")
	f.DurationVar(&timeout, "timeout", previousTimeout, "how long to wait for an earlier mount of DEVICE that is ending")
	f.StringArrayVarP(&options, "options", "o", nil, "mount `OPTIONS`, separated by commas")
	return c
}

// serveRaw shows a device as a file from beginning to end.
func serveRaw(cfg *mountConfig, env environment) (err error) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer signal.Stop(signals)
	d, files, err := begin(cfg, env)
	if err != nil {
		return err
	}
	defer files.end(func() bool { return err != nil && d.srv != nil })
	err = cfg.onAnyway(d.log, func() error {
		d.stack, err = openDevice(cfg, d.log)
		return err
	})
	if err != nil {
		return err
	}
	if d.srv, err = fs.MountRaw(cfg.Dir, d.stack.disk(), fs.Options{FSName: cfg.source(), AllowOther: cfg.AllowOther, ReadOnly: cfg.ReadOnly, Log: d.log}); err != nil {
		return d.giveUp(err)
	}
	if err := d.probe(); err != nil {
		return d.giveUp(err)
	}
	if err := files.record(d.srv.Device(), cfg); err != nil {
		return d.giveUp(err)
	}
	if err := d.serveMetrics(); err != nil {
		return d.giveUp(err)
	}
	ctl, err := d.listen(files)
	if err != nil {
		return d.giveUp(err)
	}
	d.log.Info("shown as a file", "device", cfg.Device, "file", cfg.Dir, "pid", os.Getpid())
	var notes []string
	if n := d.stack.disk().Info().BlockSize; n > 512 {
		notes = append(notes, fmt.Sprintf("the blocks of %s have %d bytes, which a file cannot say: mkfs.ext4 -b %[2]d or more, fdisk -b %[2]d", cfg.Device, n))
	}
	if err := env.ready(notes); err != nil {
		d.log.Warn("the command that started this has ended before it answered", "error", err.Error())
	}
	d.untilGone(signals)
	env.stopping()
	if d.closeErr = d.closeStack(); d.closeErr != nil {
		d.log.Error("the device was not closed cleanly: what was written last may not be on it", "device", cfg.Device, "error", oneLine(d.closeErr))
	} else {
		d.log.Info("unmounted", "file", cfg.Dir)
	}
	return d.end(files, ctl)
}

// sync makes what was written durable.
func (s *stack) sync() error {
	switch {
	case s.vol != nil:
		return s.vol.Sync()
	case s.disk().Info().ReadOnly:
		return nil
	}
	return s.disk().Flush()
}

var errRaw = errors.New("it shows a device as a file, and has no volume open")

// ofVolume are the operations that need a volume.
var ofVolume = []string{"check", "vram", "trace"}
