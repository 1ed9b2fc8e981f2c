package fs

import (
	"context"
	"syscall"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/lanefs/lanefs/fs/ext4"
)

var (
	_ = (gofs.NodeOpendirHandler)((*node)(nil))
	_ = (gofs.FileReaddirenter)((*dirHandle)(nil))
	_ = (gofs.FileSeekdirer)((*dirHandle)(nil))
	_ = (gofs.FileLookuper)((*dirHandle)(nil))
)

// dirBatch is how many entries are taken from ext4 at a time. A request of 4 KiB holds about 100.
const dirBatch = 128

// dirHandle is an open directory stream. It needs no lock, because go-fuse holds one while it calls.
//
// The position is the cookie of the last entry returned. ext4's cookies stay valid while names are added and removed, so the stream
// neither skips nor repeats a name that was there all the time.
type dirHandle struct {
	node  *node
	batch []ext4.DirEntry
	next  int    // index in batch
	pos   uint64 // where the batch after this one begins
	entry fuse.DirEntry
}

// OpendirHandle opens a directory stream.
func (n *node) OpendirHandle(_ context.Context, _ uint32) (gofs.FileHandle, uint32, syscall.Errno) {
	return &dirHandle{node: n}, 0, 0
}

// Readdirent returns the next entry, nil at the end.
func (d *dirHandle) Readdirent(_ context.Context) (*fuse.DirEntry, syscall.Errno) {
	if d.next == len(d.batch) {
		if err := d.fill(); err != nil {
			return nil, d.node.fail("readdir", err)
		}
		if len(d.batch) == 0 {
			return nil, 0
		}
	}
	e := &d.batch[d.next]
	d.next++
	d.entry = fuse.DirEntry{Name: e.Name, Ino: uint64(e.Ino), Mode: uint32(e.Type) << 12, Off: e.Cookie}
	return &d.entry, 0
}

func (d *dirHandle) fill() error {
	d.batch, d.next = d.batch[:0], 0
	err := d.node.in.ReadDir(d.pos, func(e ext4.DirEntry) bool {
		d.batch = append(d.batch, e)
		d.pos = e.Cookie
		return len(d.batch) < dirBatch
	})
	if len(d.batch) > 0 {
		// The error is met again after these entries.
		return nil
	}
	return err
}

// Seekdir moves to a cookie, or to the start with 0.
func (d *dirHandle) Seekdir(_ context.Context, off uint64) syscall.Errno {
	d.batch, d.next, d.pos = d.batch[:0], 0, off
	return 0
}

// Lookup finds the inode of the entry just read, for READDIRPLUS. It looks up the name, not the number in the entry: the name may have
// been removed and the number reused since.
func (d *dirHandle) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*gofs.Inode, syscall.Errno) {
	return d.node.Lookup(ctx, name, out)
}
