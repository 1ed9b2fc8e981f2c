package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/metrics"
	"github.com/lanefs/lanefs/fs"
	"github.com/lanefs/lanefs/fs/ext4"
)

// daemon is a mount and what serves it. serve claims the mount point, opens the stack, mounts and answers the command. It serves until
// the mount is gone (lanefs umount, umount(8), fusermount3 -u, a signal). Then it closes the stack and removes its files.
type daemon struct {
	cfg     *mountConfig
	log     *slog.Logger
	logPath string
	stack   *stack
	srv     *fs.Server
	share   *sharing        // nil: none
	metrics *metrics.Server // nil: none
	started moment

	inUse sync.RWMutex // held shared by requests that need the stack: use
	ended atomic.Bool  // the mount is gone, and the stack is about to be

	leaving  atomic.Int32           // requests that wait for the end of an unmount
	work     lastProgress           // of the volume
	waiting  atomic.Pointer[string] // what closing waits for; nil: it has not begun
	closed   chan struct{}          // after the stack was closed
	closeErr error                  // valid after closed
}

// beforeAnswer is called when a mount is there, and has not answered. Tests replace it.
var beforeAnswer = func() {}

// serve runs a mount from beginning to end.
func serve(cfg *mountConfig, env environment) (err error) {
	// A signal that comes while the stack opens is handled once there is something to unmount.
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer signal.Stop(signals)

	d, files, err := begin(cfg, env)
	if err != nil {
		return err
	}
	defer files.end(func() bool { return err != nil && d.srv != nil })
	opening := tellEvery(tellInterval, env.progress)
	var opened atomic.Bool
	err = cfg.onAnyway(d.log, func() error {
		return d.open(func(p ext4.Progress) {
			if opened.Load() {
				d.work.set(p)
			} else {
				opening(p)
			}
		})
	})
	if err != nil {
		return err
	}
	opened.Store(true)
	d.srv, err = fs.Mount(cfg.Dir, d.stack.vol, fs.Options{
		Changed: d.share.changed(), Share: d.share.path(),
		FSName: cfg.source(), AllowOther: cfg.AllowOther, ReadOnly: cfg.ReadOnly, WriteBack: cfg.WriteBack, MinixDF: cfg.MinixDF, Mount: cfg.Kernel,
		CopyReads: d.stack.bar != nil, StrictAtime: cfg.StrictAtime(), IOUring: cfg.IOUring, Keepers: keepers(), Crowded: noteCrowd(),
		SchedIdle: !cfg.NoSchedIdle, Log: d.log,
	})
	if errors.Is(err, fs.ErrServed) {
		return err
	}
	if err != nil {
		return d.giveUp(err)
	}
	addProcs(d.srv.RingThreads() > 0)
	beforeAnswer()
	if err := d.probe(); err != nil {
		return d.giveUp(err)
	}
	if err := d.share.serve(d.srv, d.log); err != nil {
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
	d.log.Info("mounted", "device", cfg.Device, "dir", cfg.Dir, "pid", os.Getpid())
	if err := env.ready(d.notes()); err != nil {
		d.log.Warn("the command that started this mount has ended before it answered", "error", err.Error())
	}

	d.untilGone(signals)
	env.stopping()
	d.awaitSpace(signals)
	d.closeErr = d.closeStack()
	if d.closeErr != nil {
		d.log.Error("the volume was not closed cleanly: the next mount recovers it from its journal", "device", cfg.Device, "error", oneLine(d.closeErr))
	} else {
		d.log.Info("unmounted", "dir", cfg.Dir)
	}
	return d.end(files, ctl)
}

// open opens the stack and the pool.
func (d *daemon) open(tell func(ext4.Progress)) (err error) {
	if d.stack, err = openStack(d.cfg, d.log, tell); err != nil {
		return err
	}
	if d.share, err = openPool(d.stack, d.cfg, d.log); err == nil {
		err = d.stack.hung()
	}
	if err != nil {
		return undo(err, d.stack.hung(), func() error { return errors.Join(d.share.close(), d.stack.Close()) })
	}
	return nil
}

// begin claims the place of a mount, or of a raw device's file, and opens its log.
func begin(cfg *mountConfig, env environment) (*daemon, *runFiles, error) {
	shedInherited()
	spareFromOOM()
	cfg.limitHeap()
	files, err := claim(cfg.Dir)
	if err != nil {
		return nil, nil, err
	}
	d := &daemon{cfg: cfg, started: thisMoment(), closed: make(chan struct{})}
	if err = files.record(0, cfg); err == nil {
		d.log, d.logPath, err = env.logTo(cfg, files)
	}
	if err != nil {
		files.release(false)
		return nil, nil, err
	}
	return d, files, nil
}

// listen makes the control socket, the last thing that needs the daemon's privileges.
func (d *daemon) listen(files *runFiles) (*control, error) {
	ctl, err := listen(files.Socket, d)
	if err != nil {
		return nil, err
	}
	d.tellUmount8()
	if err := dropPrivileges(); err != nil {
		d.log.Warn("the daemon keeps privileges that it does not need", "error", err.Error())
	}
	return ctl, nil
}

// end tells who waits that the stack is closed.
func (d *daemon) end(files *runFiles, ctl *control) error {
	files.release(d.closeErr != nil) // before a waiting unmount returns: a new mount may follow at once
	close(d.closed)
	ctl.finish()
	return d.closeErr
}

const probeTimeout = 30 * time.Second

// probe asks the mount, through the kernel, as any program would.
func (d *daemon) probe() error {
	answer := make(chan error, 1)
	go func() {
		var sfs unix.Statfs_t
		var st unix.Stat_t
		err := os.NewSyscallError("statfs", unix.Statfs(d.cfg.Dir, &sfs))
		if err == nil {
			err = os.NewSyscallError("stat", unix.Stat(d.cfg.Dir, &st))
		}
		switch {
		case err != nil:
		case sfs.Type != unix.FUSE_SUPER_MAGIC:
			err = fmt.Errorf("the file system there has type %#x", sfs.Type)
		case !d.cfg.Raw && st.Mode&unix.S_IFMT != unix.S_IFDIR:
			err = fmt.Errorf("the root has mode %#o", st.Mode)
		}
		answer <- err
	}()
	select {
	case err := <-answer:
		if err != nil {
			return fmt.Errorf("mount %q does not answer: %w; nothing is mounted, try again, and look into the kernel's log (dmesg)", d.cfg.Dir, err)
		}
		return nil
	case <-time.After(probeTimeout):
		return fmt.Errorf("mount %q does not answer within %v; nothing is mounted, try again when the machine is less busy", d.cfg.Dir, probeTimeout)
	}
}

// untilGone serves until the mount is gone. The first signal unmounts; if the mount is busy it is detached: no new name
// leads to it, and it ends when the last file in use is closed. The second signal ends it at once: what was written is
// kept, and files still open give errors from then on.
func (d *daemon) untilGone(signals <-chan os.Signal) {
	gone := make(chan struct{})
	go func() { d.srv.Wait(); close(gone) }()
	for n := 1; ; n++ {
		select {
		case <-gone:
			return
		case s := <-signals:
			d.log.Info("got a signal", "signal", s.String())
			if n == 1 {
				go d.leave(gone)
				continue
			}
			d.detach() // the first may still wait whether the mount is busy: an aborted one would stay in the tree, dead
			if err := d.srv.Abort(); err != nil {
				d.log.Error("the mount's connection cannot be aborted: kill the daemon, then umount -l", "dir", d.cfg.Dir, "error", err.Error())
			}
		}
	}
}

// lives is how long a file system may live on after its last mount here before the log says so.
const lives = 2 * time.Second

// leave unmounts, lazily if it must. What lives on, for an open file or as the copy of another mount namespace, is written out: whoever sent the signal
// may kill the daemon next.
func (d *daemon) leave(gone <-chan struct{}) {
	d.leaving.Add(1)
	defer d.leaving.Add(-1)
	err := d.srv.UnmountHere()
	if err != nil {
		d.log.Warn("detaching the mount; it ends when the last open file is closed", "why", err.Error())
		d.detach()
	} else {
		select {
		case <-gone:
			return
		case <-time.After(lives):
		}
	}
	if err := d.writeOut(); err != nil {
		d.log.Error("the volume was not written out: what changed last may be lost if the daemon is killed; sync again", "device", d.cfg.Device, "error", err.Error())
	}
	if err == nil {
		d.log.Warn("the unmount waits", "for", "an unmount in another mount namespace, or the last file that is open in it")
	}
	<-gone
}

func (d *daemon) detach() {
	if err := d.srv.Detach(); err != nil {
		d.log.Error("the mount cannot be detached: unmount it with umount -l", "dir", d.cfg.Dir, "error", err.Error())
	}
}

// writeOut makes everything durable. Once the mount is gone that is left to closing the stack.
func (d *daemon) writeOut() error {
	if !d.use() {
		return nil // closing the stack writes out everything
	}
	defer d.done()
	return d.stack.sync()
}
