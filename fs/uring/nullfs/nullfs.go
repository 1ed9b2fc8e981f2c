// Package nullfs is a FUSE file system that stores nothing but names, on /dev/fuse or over io_uring. It shows the most that a transport
// can do. What is read is zeroes.
package nullfs

import (
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/devfuse"
	"github.com/lanefs/lanefs/fs/exchange"
	"github.com/lanefs/lanefs/fs/uring"
)

const (
	maxRequest = 1 << 20
	file       = 2       // the node ID of "data"
	fileSize   = 1 << 30 // what it says that it has
)

// FS begins with one file "data" of zeroes, which takes everything, as do those that are made. A lookup of a name that begins with
// "block" waits for Blocked, if there is one, and tells Entered.
type FS struct {
	fuse.RawFileSystem
	Blocked, Entered chan struct{}
	zeroes           []byte
	names            *names
}

// New makes one.
func New() *FS {
	return &FS{RawFileSystem: fuse.NewDefaultRawFileSystem(), zeroes: make([]byte, maxRequest), names: newNames()}
}

func (n *FS) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	out.SetTimeout(time.Hour)
	return n.names.with(in.NodeId, func(d *node) { d.attr(&out.Attr) })
}

func (n *FS) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	out.SetTimeout(time.Hour)
	return n.names.with(in.NodeId, func(d *node) {
		if size, ok := in.GetSize(); ok && d.id != file {
			d.size = size
		}
		d.attr(&out.Attr)
	})
}

func (n *FS) Lookup(_ <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	if strings.HasPrefix(name, "block") && n.Blocked != nil {
		n.Entered <- struct{}{}
		<-n.Blocked
	}
	return n.names.lookup(in.NodeId, name, out)
}

func (n *FS) Open(<-chan struct{}, *fuse.OpenIn, *fuse.OpenOut) fuse.Status { return fuse.OK }

func (n *FS) Read(_ <-chan struct{}, in *fuse.ReadIn, _ []byte) (fuse.ReadResult, fuse.Status) {
	return fuse.ReadResultData(n.zeroes[:in.Size]), fuse.OK
}

func (n *FS) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	n.names.wrote(in.NodeId, in.Offset+uint64(len(data)))
	return uint32(len(data)), fuse.OK
}

func (n *FS) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	out.Bsize, out.NameLen, out.Blocks, out.Bfree, out.Bavail = 4096, 255, 1<<30, 1<<30, 1<<30
	return fuse.OK
}

// Mount is a file system on a mount of its own.
type Mount struct {
	Dir    string
	server *fuse.Server
	Rings  *uring.Transport   // nil: /dev/fuse
	Device *devfuse.Transport // nil: rings
	ended  chan struct{}
	log    *slog.Logger
}

// NewMount mounts a file system. It needs root. The caller may have given the Go runtime more processors than there are CPUs, for keepers.
func NewMount(dir string, fs fuse.RawFileSystem, overURing bool, log *slog.Logger) (_ *Mount, err error) {
	m := &Mount{Dir: dir, log: log, ended: make(chan struct{})}
	opt := &fuse.MountOptions{Name: "nullfs", DirectMountStrict: true, DirectMountFlags: unix.MS_NOSUID, MaxWrite: maxRequest,
		MaxBackground: 64, DisableSplice: true, ExtraCapabilities: fuse.CAP_ASYNC_DIO}
	if overURing {
		keepers := max(runtime.GOMAXPROCS(0)-runtime.NumCPU(), 0)
		if m.Rings, err = uring.Open(uring.Options{Payload: maxRequest, Keepers: keepers, SchedIdle: true, Log: log}); err != nil {
			return nil, err
		}
		opt.ExtraCapabilities |= fuse.CAP_OVER_IO_URING
		opt.MaxBackground = uring.MaxBackground
	}
	if m.server, err = fuse.NewServer(fs, dir, opt); err != nil {
		if overURing {
			m.Rings.Close()
		}
		return nil, err
	}
	err = m.start(fs, opt)
	go func() {
		if m.Device != nil {
			m.Device.Wait()
		}
		m.server.Serve()
		close(m.ended)
	}()
	if err != nil {
		if m.Rings != nil {
			m.Rings.Close()
		}
		return nil, errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH))
	}
	return m, m.server.WaitMount()
}

// start has the transport serve the mount.
func (m *Mount) start(fs fuse.RawFileSystem, opt *fuse.MountOptions) error {
	if m.Rings != nil && m.server.KernelSettings().Flags64()&fuse.CAP_OVER_IO_URING == 0 {
		return uring.ErrFlag
	}
	n, err := m.Connection()
	if err != nil {
		return err
	}
	h, err := exchange.GoFuse(fs, opt, m.server.KernelSettings())
	if err != nil {
		return err
	}
	fd, err := exchange.Descriptor(n)
	if err != nil {
		return err
	}
	if m.Rings != nil {
		return m.Rings.Start(fd, h)
	}
	m.Device, err = devfuse.Start(fd, h, devfuse.Options{Payload: maxRequest, SchedIdle: true, Log: m.log})
	return err
}

// Connection is the number of the mount's FUSE connection.
func (m *Mount) Connection() (uint32, error) {
	all, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) { return i.Mountpoint != m.Dir, false })
	if err != nil {
		return 0, err
	}
	if len(all) == 0 {
		return 0, errors.New("nothing is mounted there")
	}
	return uint32(all[len(all)-1].Minor), nil
}

// Wait returns when the mount has ended.
func (m *Mount) Wait() {
	<-m.ended
	if m.Rings != nil {
		m.Rings.Wait()
	}
}
