// Package faultfs is a file system that fails by rules: a FUSE pass-through over a directory. Disk images are put on it, and a
// program under test opens them like other files.
//
// The nouns: an FS is a mount over a backing directory. A Rule makes requests for its files fail, or wait. Room is how many bytes
// of holes may still be filled. Data that was written since the last fsync is dirty. An fsync that fails by a Rule with Drop loses
// it as Linux does: one fsync returns the error, reads see the new contents as long as the file is open, and afterwards the old
// ones (Forget does that at once). A later fsync that succeeds does not bring the data back.
//
// The kernel caches nothing above it (FOPEN_DIRECT_IO): rules apply to each read and write of a program. The backing files always
// hold what reads see, so a test may read them there.
package faultfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// FS is one mount. All methods may be called from any goroutine.
type FS struct {
	dir, backing string
	server       *fuse.Server

	mu    sync.Mutex
	rules []*rule             // protected by mu, as is all below
	room  int64               // bytes; less than 0: no limit
	files map[uint64]*content // open files, by inode number: the backing directory is on one file system
	seen  map[Op]int
	fired int
}

// Mount mounts the directory backing at the directory dir. It needs root or fusermount3.
func Mount(dir, backing string) (*FS, error) {
	var st unix.Stat_t
	if err := unix.Stat(backing, &st); err != nil {
		return nil, fmt.Errorf("faultfs: %q: %w", backing, err)
	}
	f := &FS{dir: dir, backing: backing, room: -1, files: map[uint64]*content{}, seen: map[Op]int{}}
	data := &gofs.LoopbackRoot{Path: backing, Dev: st.Dev}
	root := f.node(data)
	data.RootNode = root
	raw := &wire{gofs.NewNodeFS(root, &gofs.Options{NullPermissions: true})}
	var err error
	f.server, err = fuse.NewServer(raw, dir, &fuse.MountOptions{Name: "faultfs", FsName: "faultfs", MaxWrite: 1 << 20,
		AllowOther: os.Geteuid() == 0, DirectMount: true, DisableXAttrs: true})
	if err != nil {
		return nil, fmt.Errorf("faultfs: mount %q: %w", dir, err)
	}
	go f.server.Serve()
	if err := f.server.WaitMount(); err != nil {
		return nil, errors.Join(fmt.Errorf("faultfs: mount %q: %w", dir, err), f.Close())
	}
	return f, nil
}

// Dir is where it is mounted; Backing is what is below.
func (f *FS) Dir() string     { return f.dir }
func (f *FS) Backing() string { return f.backing }

// Close unmounts. If files are open the mount is detached, and their requests fail with ENOTCONN. Rules are removed first, so that
// no request waits.
func (f *FS) Close() error {
	f.Clear()
	if err := f.server.Unmount(); err == nil {
		return nil
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("faultfs: %q is busy", f.dir)
	}
	return os.NewSyscallError("umount", unix.Unmount(f.dir, unix.MNT_DETACH))
}

// wire ends each write with O_DSYNC, or RWF_DSYNC of pwritev2, with an fsync: the kernel leaves that to the file system.
type wire struct{ fuse.RawFileSystem }

func (w *wire) Writev(cancel <-chan struct{}, in *fuse.WriteIn, data [][]byte) (uint32, fuse.Status) {
	n, st := w.Write(cancel, in, slices.Concat(data...))
	if st.Ok() && in.Flags&unix.O_DSYNC != 0 {
		st = w.Fsync(cancel, &fuse.FsyncIn{InHeader: in.InHeader, Fh: in.Fh, FsyncFlags: 1})
	}
	return n, st
}

// node is a file or directory.
type node struct {
	gofs.LoopbackNode
	fs *FS
}

func (f *FS) node(root *gofs.LoopbackRoot) *node {
	return &node{LoopbackNode: gofs.LoopbackNode{RootData: root}, fs: f}
}

// WrapChild implements gofs.NodeWrapChilder.
func (n *node) WrapChild(context.Context, gofs.InodeEmbedder) gofs.InodeEmbedder {
	return n.fs.node(n.RootData)
}

func (n *node) name() string { return n.Path(n.Root()) }

func (n *node) Open(ctx context.Context, flags uint32) (gofs.FileHandle, uint32, syscall.Errno) {
	if errno := n.fs.admit(&request{op: OpOpen, file: n.name()}); errno != 0 {
		return nil, 0, errno
	}
	flags &^= unix.O_APPEND | unix.O_DIRECT | fuse.FMODE_EXEC
	f, err := os.OpenFile(filepath.Join(n.fs.backing, n.name()), int(flags), 0)
	if err != nil {
		return nil, 0, gofs.ToErrno(err)
	}
	return n.open(f, n.name())
}

func (n *node) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*gofs.Inode, gofs.FileHandle, uint32, syscall.Errno) {
	child, h, _, errno := n.LoopbackNode.Create(ctx, name, flags&^unix.O_DIRECT, mode, out)
	if errno != 0 {
		return nil, nil, 0, errno
	}
	h.(gofs.FileReleaser).Release(ctx)
	path := filepath.Join(n.name(), name)
	f, err := os.OpenFile(filepath.Join(n.fs.backing, path), int(flags&unix.O_ACCMODE), 0)
	if err != nil {
		return nil, nil, 0, gofs.ToErrno(err)
	}
	h, fl, errno := n.open(f, path)
	return child, h, fl, errno
}

func (n *node) open(f *os.File, name string) (gofs.FileHandle, uint32, syscall.Errno) {
	c, err := n.fs.contentOf(f, name)
	if err != nil {
		f.Close()
		return nil, 0, gofs.ToErrno(err)
	}
	return &handle{f: f, c: c}, fuse.FOPEN_DIRECT_IO, 0
}

// Setattr changes attributes, and the size for truncate(2).
func (n *node) Setattr(ctx context.Context, h gofs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	size, ok := in.GetSize()
	if !ok {
		return n.LoopbackNode.Setattr(ctx, nil, in, out)
	}
	if errno := n.fs.admit(&request{op: OpTruncate, file: n.name(), off: int64(size), n: 1}); errno != 0 {
		return errno
	}
	if errno := n.LoopbackNode.Setattr(ctx, nil, in, out); errno != 0 {
		return errno
	}
	n.fs.truncated(out.Ino, int64(size))
	return 0
}
