package uring_test

import (
	"os"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/uring"
	"github.com/lanefs/lanefs/fs/uring/uringtest"
)

const (
	nullFile = 2
	nullSize = 1 << 30
)

// nullFS has one file "data" of zeroes that takes everything, and counts. A name that begins with "block" is looked up when blocked says so.
type nullFS struct {
	fuse.RawFileSystem
	zeroes  []byte
	blocked chan struct{}
	entered chan struct{}
	gone    chan struct{}
}

func newNull() *nullFS {
	return &nullFS{RawFileSystem: fuse.NewDefaultRawFileSystem(), zeroes: make([]byte, 1<<20),
		blocked: make(chan struct{}), entered: make(chan struct{}, 64), gone: make(chan struct{})}
}

func (n *nullFS) attr(id uint64, a *fuse.Attr) {
	a.Ino, a.Nlink = id, 1
	if a.Mode = fuse.S_IFREG | 0o666; id == fuse.FUSE_ROOT_ID {
		a.Mode = fuse.S_IFDIR | 0o755
	}
	a.Size, a.Blksize = nullSize, 4096
}

func (n *nullFS) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	n.attr(in.NodeId, &out.Attr)
	out.SetTimeout(time.Hour)
	return fuse.OK
}

func (n *nullFS) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	n.attr(in.NodeId, &out.Attr)
	out.SetTimeout(time.Hour)
	return fuse.OK
}

func (n *nullFS) Lookup(_ <-chan struct{}, _ *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	switch {
	case name == "data":
	case len(name) > 5 && name[:5] == "block":
		n.entered <- struct{}{}
		<-n.blocked
		return fuse.ENOENT
	default:
		return fuse.ENOENT
	}
	out.NodeId = nullFile
	n.attr(nullFile, &out.Attr)
	out.SetEntryTimeout(time.Hour)
	out.SetAttrTimeout(time.Hour)
	return fuse.OK
}

func (n *nullFS) Open(_ <-chan struct{}, _ *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return fuse.OK
}

func (n *nullFS) Read(_ <-chan struct{}, in *fuse.ReadIn, _ []byte) (fuse.ReadResult, fuse.Status) {
	return fuse.ReadResultData(n.zeroes[:in.Size]), fuse.OK
}

func (n *nullFS) Write(_ <-chan struct{}, _ *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	return uint32(len(data)), fuse.OK
}

func (n *nullFS) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	out.Bsize, out.NameLen = 4096, 255
	return fuse.OK
}

func (n *nullFS) OnUnmount() { close(n.gone) }

// mounted is a file system on a mount of its own.
type mounted struct {
	dir    string
	server *fuse.Server
	rings  *uring.Transport // nil: /dev/fuse
}

// mount mounts a file system, over io_uring if overURing says so.
func mount(t testing.TB, fs fuse.RawFileSystem, overURing bool) *mounted {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: mounting needs root")
	}
	m := &mounted{dir: t.TempDir()}
	opt := &fuse.MountOptions{Name: "uringtest", DirectMountStrict: true, DirectMountFlags: unix.MS_NOSUID, MaxWrite: 1 << 20, MaxBackground: uring.MaxBackground,
		DisableSplice: true, ExtraCapabilities: fuse.CAP_ASYNC_DIO}
	var err error
	if overURing {
		m.rings, err = uring.Open(uring.Options{Payload: opt.MaxWrite, Logf: t.Logf})
		require.NoError(t, err)
		opt.ExtraCapabilities |= fuse.CAP_OVER_IO_URING
	}
	m.server, err = fuse.NewServer(fs, m.dir, opt)
	require.NoError(t, err)
	go m.server.Serve()
	if overURing {
		require.NotZero(t, m.server.KernelSettings().Flags64()&fuse.CAP_OVER_IO_URING)
		fd, err := uring.Descriptor(connection(t, m.dir))
		require.NoError(t, err)
		h, err := uring.GoFuse(fs, opt, m.server.KernelSettings())
		require.NoError(t, err)
		require.NoError(t, m.rings.Start(fd, h))
	}
	require.NoError(t, m.server.WaitMount())
	t.Cleanup(func() { m.unmount(t) })
	return m
}

func (m *mounted) unmount(t testing.TB) {
	if m.server == nil {
		return
	}
	require.NoError(t, unix.Unmount(m.dir, 0))
	m.wait(t)
}

// wait fails if the server or the rings do not end.
func (m *mounted) wait(t testing.TB) {
	done := make(chan struct{})
	go func() {
		m.server.Wait()
		if m.rings != nil {
			m.rings.Wait()
		}
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("the mount does not end")
	}
	m.server = nil
}

func TestNull(t *testing.T) {
	uringtest.Enable(t)
	m := mount(t, newNull(), true)
	f, err := os.OpenFile(m.dir+"/data", os.O_RDWR|unix.O_DIRECT, 0)
	require.NoError(t, err)
	defer f.Close()
	_ = f
}
