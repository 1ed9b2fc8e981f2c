package fs

import (
	"math"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// The kernel's pages of a file, as far as requests tell. Transfers of fs/share change files behind the kernel's back, and direct writes beside what it
// reads (direct.go), so it has to drop its pages of what they change, by a notification for each range. A notification takes about as long as a small write. So
//
//   - a file of which the kernel has no pages needs none but one for its size and times: its nodes count the bytes of READ and WRITE requests through the page cache;
//   - after a few notifications the kernel drops all pages of the file instead, once, and the count begins anew: most programs that begin to write
//     directly, as a database does to a file that was restored by cp, never use those pages again, if there are any;
//   - later it does so when notifications have cost as much as to read all the counted bytes again. The total is at most about twice what either way costs by
//     itself, and the file read once.
//
// A request counts before it looks at the file, and a notification comes after the change, so either the request sees the change, or the
// notification sees the request. Dirty pages that no request has told of are there only with the write-back cache, where nothing is counted.

// freeNotices is how many ranges are notified before all pages may be dropped, and pagesPerNotice how many pages cost as much as one more.
const (
	freeNotices    = 64
	pagesPerNotice = 2
	pageSize       = 4096
)

// hasPages notes that the kernel may have n bytes of the file in pages from now on.
func (n *node) hasPages(bytes int) { n.paged.Add(int64(bytes/pageSize) + 1) }

// wroteBack notes a WRITE of dirty pages of a memory map.
func (n *node) wroteBack(in *fuse.WriteIn) {
	if in.WriteFlags&fuse.WRITE_CACHE != 0 && !n.mapped.Load() {
		n.mapped.Store(true)
	}
}

// cached says whether a READ fills pages. The kernel names the lock owner in those of direct I/O alone (fuse_send_read in fs/fuse/file.c), whose bytes go
// to the program's memory; what a page fault reads does not have it, also if the file is open for direct I/O.
func cached(in *fuse.ReadIn) bool { return in.ReadFlags&fuse.READ_LOCKOWNER == 0 }

// mayHavePages says whether the kernel may have pages of the file, or has not yet dropped all that it had.
func (n *node) mayHavePages() bool {
	return n.paged.Load() > 0 || n.dropping.Load() > 0 // in this order: see dropAll
}

// dropAll has the kernel drop all pages of the file. The count begins anew before that, and dropping is raised before, so that no change of the
// file in between is taken for one that leaves nothing to drop.
func (n *node) dropAll() fuse.Status {
	defer n.dropping.Add(-1)
	n.dropping.Add(1)
	n.told.Store(0)
	n.dropped.Store(true)
	n.paged.Store(0)
	return n.srv.invalidate(n)
}

// dropsAll reports whether the kernel shall drop all pages of the file rather than those of so many ranges more. Not if the file was written through a memory map: its pages may become dirty while they are dropped, and stay.
func (n *node) dropsAll(ranges int) bool {
	limit := int64(freeNotices)
	if n.dropped.Load() {
		limit += n.paged.Load() / pagesPerNotice
	}
	return n.told.Add(int64(ranges)) > limit && !n.mapped.Load()
}

// pages returns whether the kernel may have pages of an inode, and its node if that is loaded.
func (t *nodes) pages(f *External) (n *node, have bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	ino := f.in.Ino()
	if n := t.loaded[ino]; n != nil {
		return n, n.in == f.in && n.mayHavePages()
	}
	r := t.known[ino]
	return nil, r.paged > 0
}

// dropRanges makes the kernel write back and drop its pages of ranges of the file. It reports whether it told the kernel anything, and what the kernel answered.
func (f *External) dropRanges(ranges []byteRange) (told bool, st fuse.Status) {
	s := f.n.srv
	n, have := s.nodes.pages(f)
	switch {
	case s.opt.WriteBack:
	case !have:
		return false, fuse.OK
	case n != nil && n.dropsAll(len(ranges)):
		st = n.dropAll()
		if n.mapped.Load() { // since then: a page may have stayed
			n.hasPages(0)
		}
		return true, st
	}
	for _, r := range ranges {
		if is := s.fuse.InodeNotify(f.n.id(), r.off, r.end-r.off); !is.Ok() {
			st = is
		}
	}
	return len(ranges) > 0, st
}

// ended says whether a notification failed for want of a connection: ENOENT is that the kernel does not know the file. The kernel reads pages that it still
// has after that, too (fuse_file_read_iter in fs/fuse/file.c asks the server for pages that are missing, and for attributes that are too old).
func ended(st fuse.Status) bool { return !st.Ok() && st != fuse.ENOENT }

// pagedPages is what the record of a dropped node keeps of paged.
func pagedPages(n int64) uint32 { return uint32(min(n, math.MaxUint32)) }
