package fs

import (
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/lanefs/lanefs/fs/ext4"
)

// dirBatch is how many entries are taken from ext4 at a time. A request of 4 KiB holds about 100.
const dirBatch = 128

// dirAttributes is how many names of a stream come with what the kernel needs to know their files. Most programs that list a directory ask
// for each file's attributes then, when they have all names: that is a LOOKUP less for each. Who wants names only pays some µs for each of them,
// and not for all of a very large directory.
//
// With READDIRPLUS_AUTO the kernel would ask for the first request's names only, since nobody looks anything up between the requests.
const dirAttributes = 4096

// dirHandle is an open directory stream. It is a use of its node.
//
// The position is the cookie of the last entry returned. ext4's cookies stay valid while names are added and removed, so the stream
// neither skips nor repeats a name that was there all the time. A request for another position is a seek: of a program, or of the kernel
// when it was interrupted and did not take all entries of a reply.
type dirHandle struct {
	node *node

	mu    sync.Mutex // protects what follows
	batch []ext4.DirEntry
	next  int    // index in batch
	off   uint64 // the stream's position: the cookie of the entry before batch[next]
	pos   uint64 // where the batch after this one begins
	known int    // names that were sent with attributes since the stream was at its beginning
}

// read fills a reply to READDIR, or to READDIRPLUS if plus is set, from position off.
func (d *dirHandle) read(off uint64, how ext4.Reading, out *fuse.DirEntryList, plus bool) syscall.Errno {
	d.mu.Lock()
	defer d.mu.Unlock()
	if off == 0 {
		d.known = 0
	}
	if off != d.off {
		d.batch, d.next, d.off, d.pos = d.batch[:0], 0, off, off
	}
	for first := true; ; first = false {
		if d.next == len(d.batch) {
			if err := d.fill(how); err != nil && first {
				return d.node.fail("readdir", err)
			}
			if len(d.batch) == 0 {
				return 0 // the end, or an error that is met again after these entries
			}
		}
		e := &d.batch[d.next]
		if !d.add(e, out, plus) {
			return 0 // the reply is full
		}
		d.next++
		d.off = e.Cookie
	}
}

// fill takes the next entries from ext4.
func (d *dirHandle) fill(how ext4.Reading) error {
	d.batch, d.next = d.batch[:0], 0
	err := d.node.in.ReadDir(d.pos, func(e ext4.DirEntry) bool {
		d.batch = append(d.batch, e)
		d.pos = e.Cookie
		return len(d.batch) < dirBatch
	}, how)
	if len(d.batch) > 0 {
		// The error is met again after these entries.
		return nil
	}
	return err
}

// add adds an entry to a reply, and reports false if it has no room.
//
// READDIRPLUS looks up the name, not the number in the entry: the name may have been removed and the number reused since. If there is no
// such name any more, or the stream has had its share of attributes, the reply has a node ID of zero, and the kernel looks the name up itself. It does not use what "." and ".." say.
//
// So it is for a file that the kernel was told of before, and that no request came for since: a directory that is listed again and again costs names only.
func (d *dirHandle) add(e *ext4.DirEntry, out *fuse.DirEntryList, plus bool) bool {
	entry := fuse.DirEntry{Name: e.Name, Ino: uint64(e.Ino), Mode: uint32(e.Type) << 12, Off: e.Cookie}
	if !plus {
		return out.AddDirEntry(entry)
	}
	to := out.AddDirLookupEntry(entry)
	if to == nil {
		return false
	}
	if e.Name == "." || e.Name == ".." || d.known == dirAttributes || d.node.srv.nodes.fresh(e.Ino) {
		return true
	}
	d.known++
	if d.node.Lookup(e.Name, to) == 0 {
		out.FixMode(to.Attr.Mode)
	}
	return true
}

// dirHandles is the table of open directory streams, by the file handle that the kernel has for each.
type dirHandles struct {
	mu   sync.Mutex
	open map[uint64]*dirHandle // protected by mu
	last uint64                // protected by mu: the handle given last
}

// add opens a stream of n. It takes over a use of n.
func (t *dirHandles) add(n *node) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open == nil {
		t.open = make(map[uint64]*dirHandle)
	}
	t.last++
	t.open[t.last] = &dirHandle{node: n}
	return t.last
}

func (t *dirHandles) get(fh uint64) *dirHandle {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.open[fh]
}

// remove closes a stream. It gives back the use of its node.
func (t *dirHandles) remove(fh uint64) {
	t.mu.Lock()
	d := t.open[fh]
	delete(t.open, fh)
	t.mu.Unlock()
	if d != nil {
		d.node.done()
	}
}
