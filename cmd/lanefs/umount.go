package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/spf13/cobra"

	"github.com/lanefs/lanefs/fs"
)

// An unmount, step by step:
//
//  1. Connect to the daemon. It will say when it has closed the device (await), and writes out everything (settle).
//  2. Take the mount away, in this mount namespace. A mount that is busy stays, and that is the error.
//  3. Wait for what else keeps the file system, then for the daemon to write everything out and close the device.
//
// Of a volume that is mounted elsewhere too only one mount goes. Then 3 is a sync.

const (
	// umountTimeout bounds how long everything that is still in memory may take to reach the medium, unless told otherwise.
	umountTimeout = 15 * time.Minute
	// lazySync is how long a lazy unmount waits for the daemon to write out: it does not depend on that.
	lazySync = 2 * time.Second
	// beginStep is between two looks whether the daemon of a mount that has just come listens.
	beginStep = 20 * time.Millisecond
)

type umountOptions struct {
	timeout time.Duration
	lazy    bool
	quiet   bool // for umount(8), which says nothing when all is well
}

func umountCommand() *cobra.Command {
	var opt umountOptions
	c := &cobra.Command{
		Use:   "umount [--timeout DURATION] [--lazy] DIR",
		Short: "unmount, and return when everything is on the medium",
		Long: `Unmounts DIR. The command returns 0 only when everything is on the medium and the device is closed. It prints what it waits
for, and stops waiting after --timeout; the daemon goes on. If the volume is also mounted elsewhere, by lanefs mount or
mount --bind, everything is written to the medium, DIR alone is unmounted, and the device stays open. A mount whose daemon was killed is
removed.`,
		Args: exactly("DIR"),
		RunE: func(c *cobra.Command, args []string) error { return umount(args[0], opt, c.ErrOrStderr()) },
	}
	c.Flags().DurationVar(&opt.timeout, "timeout", umountTimeout, "how long to wait at most")
	c.Flags().BoolVar(&opt.lazy, "lazy", false, "unmount DIR although it is in use, and do not wait: the daemon ends with the last user")
	c.Flags().BoolVar(&opt.quiet, "quiet", false, "do not say what stays mounted")
	_ = c.Flags().MarkHidden("quiet") // for umount(8)
	return c
}

func umount(arg string, opt umountOptions, out io.Writer) error {
	m, err := ourMount(arg)
	if err != nil {
		return err
	}
	t, err := dialBegun(m, min(opt.timeout, probeTimeout))
	if errors.Is(err, errNoDaemon) {
		return clearDead(m, err, out)
	}
	if err != nil {
		return err
	}
	defer t.close()
	if opt.lazy {
		return detach(t)
	}
	others, err := elsewhere(m)
	if err != nil {
		return err
	}
	w := watch(m, opt.timeout, out)
	defer w.end()
	if stays := whole(others); stays != nil || m.Root != "/" && len(others) > 0 {
		if err := w.unmount(); err != nil {
			return err
		}
		if err := w.roundTrip(t, request{Op: "sync"}, nil); err != nil {
			return err
		}
		if stays == nil {
			stays = others[0]
		}
		if opt.quiet {
			return nil
		}
		fmt.Fprintf(out, "lanefs: %q is unmounted, and everything is on the medium; the volume stays mounted as %s\n", m.Mountpoint, describe(stays))
		return nil
	}
	return w.roundTrip(t, request{Op: "await"}, func() error { // from here on a mount at DIR waits for the end of this one
		if err := settle(m, w); err != nil {
			return err
		}
		if err := w.unmount(); err != nil {
			return err
		}
		w.reportMounts(others)
		return nil
	})
}

// dialBegun is dial for a mount that may have just come: the mount is there before its daemon listens. While one that is to serve it lives, it
// is asked again until the limit.
func dialBegun(m *mountinfo.Info, limit time.Duration) (*daemonConn, error) {
	for end := time.Now().Add(limit); ; time.Sleep(beginStep) {
		t, err := dial(m)
		if !errors.Is(err, errNoDaemon) || fs.Dead(m.Mountpoint) || !begun(m) || time.Now().After(end) {
			return t, err
		}
	}
}

// begun says whether there is a daemon, alive, that serves the mount m or is about to.
func begun(m *mountinfo.Info) bool {
	for _, s := range daemons() {
		if s.serves(m) || s.Number == "" && s.Device == m.Source && s.Dir == m.Mountpoint {
			return true
		}
	}
	return false
}

// settle has everything written while the mount is still there: what the medium has no room for would be lost with it.
func settle(m *mountinfo.Info, w *watcher) error {
	t, err := dial(m)
	if err != nil {
		return err
	}
	defer t.close()
	return w.roundTrip(t, request{Op: "settle"}, nil)
}

// elsewhere is where else in this mount namespace the file system of m is mounted.
func elsewhere(m *mountinfo.Info) (others []*mountinfo.Info, err error) {
	all, err := fs.MountsOf(fs.Number(m))
	for _, o := range all {
		if o.ID != m.ID && o.Source == m.Source {
			others = append(others, o)
		}
	}
	return others, err
}

// whole is one of the mounts that is of the whole volume, nil if none is.
func whole(mounts []*mountinfo.Info) *mountinfo.Info {
	for _, m := range mounts {
		if m.Root == "/" {
			return m
		}
	}
	return nil
}

// describe names a mount.
func describe(m *mountinfo.Info) string {
	if m.Root == "/" {
		return fmt.Sprintf("%q", m.Mountpoint)
	}
	return fmt.Sprintf("the bind mount %q of its %q", m.Mountpoint, m.Root)
}

// detach takes the mount away, although it may be in use.
func detach(t *daemonConn) error {
	if err := fs.DetachMount(t.m); err != nil {
		return err
	}
	sync := request{Op: "sync"}
	err := t.send(sync)
	if err == nil {
		_, err = t.receive(sync, time.Now().Add(lazySync))
	}
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, io.EOF) {
		return nil // it goes on by itself, or has ended
	}
	return err
}

// clearDead takes away the mount and the files of a daemon that was killed; why is how it does not answer.
func clearDead(m *mountinfo.Info, why error, out io.Writer) error {
	if !fs.Dead(m.Mountpoint) {
		return fmt.Errorf("%q is mounted, but %w: unmount it with fusermount3 -u", m.Mountpoint, why)
	}
	dirs := []string{m.Mountpoint}
	for _, s := range recorded(func(string) bool { return true }) {
		if s.serves(m) && s.Dir != m.Mountpoint { // it was mounted there, and moved
			dirs = append(dirs, s.Dir)
		}
	}
	if err := fs.DetachMount(m); err != nil {
		return fmt.Errorf("%q: its daemon is dead, and the mount it left cannot be cleared: %w", m.Mountpoint, err)
	}
	for _, dir := range dirs {
		if files, err := claim(dir); err == nil {
			files.release(true) // its log may say why it died
		}
	}
	forgetUmount8(m.Source, m.Mountpoint)
	fmt.Fprintf(out, "lanefs: %q: its daemon was dead; the mount it left is cleared\n", m.Mountpoint)
	return nil
}
