package fs

import (
	"fmt"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/devfuse"
	"github.com/lanefs/lanefs/fs/exchange"
	"github.com/lanefs/lanefs/fs/uring"
)

// descriptor finds that of a connection, and roomForReader says whether there may be one more thread; variables for tests.
var (
	descriptor    = exchange.Descriptor
	roomForReader = uring.RoomForThread
)

// serve has the mount's requests served, and returns at once. Where they do not come by rings, package devfuse reads them: fuse.Server's own threads wake
// up wherever a CPU stands idle. With rings fuse.Server reads what is left on /dev/fuse. It is also what closes the connection at the end.
func (s *Server) serve(raw fuse.RawFileSystem, opt *fuse.MountOptions) {
	if s.rings.used() == nil {
		t, err := s.startDevice(raw, opt)
		if err != nil {
			s.opt.Log.Warn("fs: go-fuse reads /dev/fuse, which is slower", "error", err)
		}
		s.device.Store(t) // requests may be under way already
	}
	go func() {
		if t := s.device.Load(); t != nil {
			t.Wait()
			s.payloads.Close()
		}
		s.fuse.Serve()
	}()
}

func (s *Server) startDevice(raw fuse.RawFileSystem, opt *fuse.MountOptions) (*devfuse.Transport, error) {
	handler, err := exchange.GoFuse(raw, opt, s.fuse.KernelSettings())
	if err != nil {
		return nil, err
	}
	fd, err := descriptor(unix.Minor(s.dev))
	if err != nil {
		return nil, err
	}
	s.payloads.open(s.vol)
	t, err := devfuse.Start(fd, handler, devfuse.Options{Payload: opt.MaxWrite, Alloc: s.payloads.alloc, Room: roomForReader, SchedIdle: s.opt.SchedIdle,
		Log:    s.opt.Log,
		Failed: s.transportFailed})
	if err != nil {
		s.payloads.Close()
		return nil, fmt.Errorf("threads for /dev/fuse: %w", err)
	}
	s.payloads.Enough()
	return t, nil
}
