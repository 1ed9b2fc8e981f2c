// Package nullfs is a FUSE file system that stores nothing, on /dev/fuse or over io_uring. It shows the most that a transport can do.
package nullfs

import (
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/uring"
)

const (
	maxRequest = 1 << 20
	file       = 2       // the node ID of "data"
	fileSize   = 1 << 30 // what it says that it has
)

// FS has one file "data" of zeroes, which takes everything. A lookup of a name that begins with "block" waits for Blocked, if there
// is one, and tells Entered.
type FS struct {
	fuse.RawFileSystem
	Blocked, Entered chan struct{}
	zeroes           []byte
}

// New makes one.
func New() *FS {
	return &FS{RawFileSystem: fuse.NewDefaultRawFileSystem(), zeroes: make([]byte, maxRequest)}
}

func attr(id uint64, a *fuse.Attr) {
	a.Ino, a.Nlink, a.Size, a.Blksize = id, 1, fileSize, 4096
	if a.Mode = fuse.S_IFREG | 0o666; id == fuse.FUSE_ROOT_ID {
		a.Mode = fuse.S_IFDIR | 0o755
	}
}

func (n *FS) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	attr(in.NodeId, &out.Attr)
	out.SetTimeout(time.Hour)
	return fuse.OK
}

func (n *FS) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	attr(in.NodeId, &out.Attr)
	out.SetTimeout(time.Hour)
	return fuse.OK
}

func (n *FS) Lookup(_ <-chan struct{}, _ *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	if strings.HasPrefix(name, "block") && n.Blocked != nil {
		n.Entered <- struct{}{}
		<-n.Blocked
	}
	if name != "data" {
		return fuse.ENOENT
	}
	out.NodeId = file
	attr(file, &out.Attr)
	out.SetEntryTimeout(time.Hour)
	out.SetAttrTimeout(time.Hour)
	return fuse.OK
}

func (n *FS) Open(<-chan struct{}, *fuse.OpenIn, *fuse.OpenOut) fuse.Status { return fuse.OK }

func (n *FS) Read(_ <-chan struct{}, in *fuse.ReadIn, _ []byte) (fuse.ReadResult, fuse.Status) {
	return fuse.ReadResultData(n.zeroes[:in.Size]), fuse.OK
}

func (n *FS) Write(_ <-chan struct{}, _ *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	return uint32(len(data)), fuse.OK
}

func (n *FS) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	out.Bsize, out.NameLen = 4096, 255
	return fuse.OK
}

// Mount is a file system on a mount of its own.
type Mount struct {
	Dir    string
	server *fuse.Server
	rings  *uring.Transport // nil: /dev/fuse
}

// NewMount mounts a file system. It needs root.
func NewMount(dir string, fs fuse.RawFileSystem, overURing bool, log *slog.Logger) (_ *Mount, err error) {
	m := &Mount{Dir: dir}
	opt := &fuse.MountOptions{Name: "nullfs", DirectMountStrict: true, DirectMountFlags: unix.MS_NOSUID, MaxWrite: maxRequest,
		MaxBackground: 64, DisableSplice: true, ExtraCapabilities: fuse.CAP_ASYNC_DIO}
	if overURing {
		if m.rings, err = uring.Open(uring.Options{Payload: maxRequest, Log: log}); err != nil {
			return nil, err
		}
		opt.ExtraCapabilities |= fuse.CAP_OVER_IO_URING
		opt.MaxBackground = uring.MaxBackground
	}
	if m.server, err = fuse.NewServer(fs, dir, opt); err != nil {
		if overURing {
			m.rings.Close()
		}
		return nil, err
	}
	go m.server.Serve()
	if overURing {
		if err := m.start(fs, opt); err != nil {
			m.rings.Close()
			return nil, errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH))
		}
	}
	return m, m.server.WaitMount()
}

func (m *Mount) start(fs fuse.RawFileSystem, opt *fuse.MountOptions) error {
	if m.server.KernelSettings().Flags64()&fuse.CAP_OVER_IO_URING == 0 {
		return uring.ErrFlag
	}
	n, err := m.Connection()
	if err != nil {
		return err
	}
	h, err := uring.GoFuse(fs, opt, m.server.KernelSettings())
	if err != nil {
		return err
	}
	fd, err := uring.Descriptor(n)
	if err != nil {
		return err
	}
	return m.rings.Start(fd, h)
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
	m.server.Wait()
	if m.rings != nil {
		m.rings.Wait()
	}
}
