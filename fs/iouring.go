package fs

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/exchange"
	"github.com/lanefs/lanefs/fs/schedidle"
	"github.com/lanefs/lanefs/fs/uring"
)

// IOUring says by which way the kernel's requests come.
type IOUring int

const (
	IOUringAuto IOUring = iota // what autoIOUring says
	IOUringOff                 // /dev/fuse
	IOUringOn                  // io_uring where the kernel has it, else /dev/fuse
)

// autoIOUring is what IOUringAuto means: "on" or "off". A variable, and a string, for the linker: the tests of every package, and the
// programs that they build, run on one transport or the other with GOFLAGS=-ldflags=-X=github.com/lanefs/lanefs/fs.autoIOUring=on
var autoIOUring = "on"

// Wanted says whether requests are to come by io_uring, where that can be had.
func (u IOUring) Wanted() bool { return u == IOUringOn || u == IOUringAuto && autoIOUring == "on" }

// rings is the mount's FUSE over io_uring: requests go to a second ProtocolServer of go-fuse's over the same rawFS. INIT, FORGET,
// INTERRUPT and notifications stay with fuse.Server on /dev/fuse. An INTERRUPT for a request on a ring finds nothing there; that loses
// nothing as long as no request looks whether it was interrupted.
type rings struct {
	transport *uring.Transport // nil: not wanted, or it cannot be had
	off       atomic.Bool      // it is not used
	why       error            // why not
}

// used is the transport that brings the mount's requests, nil if /dev/fuse does.
func (r *rings) used() *uring.Transport {
	if r.off.Load() {
		return nil
	}
	return r.transport
}

// afterRings is a test's: it is called when the rings are made.
var afterRings func()

// openRings makes the rings before the mount, where they are wanted and can be had.
func (s *Server) openRings(opt *fuse.MountOptions) {
	if !s.opt.IOUring.Wanted() {
		return
	}
	s.payloads.open(s.vol)
	t, err := uring.Open(uring.Options{Payload: opt.MaxWrite, Alloc: s.payloads.alloc, Keepers: s.opt.Keepers, Crowded: s.opt.Crowded,
		SchedIdle: s.opt.SchedIdle, Log: s.opt.Log,
		Failed: s.transportFailed})
	if err == nil {
		if err = uring.RoomForFiles(); err != nil {
			t.Close()
		}
	}
	if err != nil {
		s.payloads.Close()
		s.noRings(err)
		return
	}
	s.payloads.Enough()
	if afterRings != nil {
		afterRings()
	}
	s.rings.transport = t
	opt.ExtraCapabilities |= fuse.CAP_OVER_IO_URING
	opt.MaxBackground = uring.MaxBackground
}

// transportFailed is told that a transport does not serve its requests any more.
func (s *Server) transportFailed(err error) {
	s.opt.Log.Error("fs: the connection is aborted, for requests could wait for ever", "error", err)
	go s.Abort()
}

// noRings notes why requests come by /dev/fuse. That is worth a line in the log only where rings were asked for.
func (s *Server) noRings(why error) {
	s.rings.why = why
	s.rings.off.Store(true)
	level := slog.LevelDebug
	if s.opt.IOUring == IOUringOn {
		level = slog.LevelWarn
	}
	s.opt.Log.Log(context.Background(), level, "fs: requests come by /dev/fuse, not io_uring", "why", why)
}

// startRings has the kernel use the rings, if it said in INIT that it would. Until then its requests wait. The error is that of a mount
// which may wait for ever; if the kernel goes on by /dev/fuse there is none.
func (s *Server) startRings(raw fuse.RawFileSystem, opt *fuse.MountOptions) error {
	t := s.rings.transport
	if t == nil {
		return nil
	}
	init := s.fuse.KernelSettings()
	if init.Flags64()&fuse.CAP_OVER_IO_URING == 0 {
		s.closeRings()
		s.noRings(uring.ErrFlag)
		return nil
	}
	handler, err := exchange.GoFuse(raw, opt, init)
	if err != nil {
		t.Close()
		return err
	}
	fd, err := descriptor(unix.Minor(s.dev))
	if err != nil {
		t.Close()
		return err
	}
	if err := t.Start(fd, handler); err != nil {
		s.closeRings()
		s.noRings(err)
	}
	return nil
}

// waitRings returns when the last request on a ring was answered.
func (s *Server) waitRings() {
	if t := s.rings.used(); t != nil {
		t.Wait()
		s.payloads.Close()
	}
}

// closeRings ends rings of a mount that did not come about.
func (s *Server) closeRings() {
	if t := s.rings.transport; t != nil {
		t.Close()
		s.payloads.Close()
	}
}

// Transport says by which way requests come, and why not by io_uring if that was wanted.
func (s *Server) Transport() (name string, why error) {
	if t := s.rings.used(); t != nil {
		return fmt.Sprintf("io_uring, %v", t), nil
	}
	return "/dev/fuse", s.rings.why
}

// SchedIdle is the transport's; nothing where go-fuse reads the mount's requests.
func (s *Server) SchedIdle() (*schedidle.Stats, error) {
	if t := s.rings.used(); t != nil {
		return t.SchedIdle()
	}
	if t := s.device.Load(); t != nil {
		return t.SchedIdle()
	}
	return nil, nil
}

// freeDrops is how many requests may wait without a limit for the kernel to drop pages (see pagesGone): on rings fewer than a
// queue has threads.
func (s *Server) freeDrops() int32 {
	if t := s.rings.used(); t != nil {
		return min(maxFreeDrops, int32(t.Servers()-2))
	}
	return maxFreeDrops
}

// RingThreads is how many threads serve rings.
func (s *Server) RingThreads() int {
	if t := s.rings.used(); t != nil {
		return t.Threads()
	}
	return 0
}
