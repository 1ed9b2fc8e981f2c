package fs

import (
	"context"
	"syscall"
	"time"
)

// Direct writes go by the kernel's page cache. It drops its pages of the range when such a write begins, but of one by aio not
// when it ends: pages that somebody has read meanwhile would keep the old bytes. So it is told to drop them before the answer.
//
// Then it waits for pages that are just being read or written back, by requests that need a place among those under way
// (maxBackground, maxInflight). If all places were taken by direct writes that wait for such pages nothing would go on. So
// only a few wait without a limit.
const (
	freeDrops  = 8 // of at most maxRequest each
	staleGrace = 100 * time.Millisecond
)

// writeDirect is Write that says of nothing that it was stored if not all was: of a direct write by aio that ends early the
// kernel makes EIO, whatever the reason.
func (n *node) writeDirect(ctx context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	done, err := n.store(ctx, data, off)
	if err != nil {
		done = 0
	}
	n.dropPages(off, int64(len(data)))
	return n.written(done, err)
}

// dropPages has the kernel forget pages that a direct write has made old. It has none of a file that it has never read, nor
// written otherwise.
func (n *node) dropPages(off, size int64) {
	if !n.paged.Load() {
		return
	}
	s := n.srv
	defer s.drops.Add(-1)
	if s.drops.Add(1) <= freeDrops {
		s.fuse.InodeNotify(n.id(), off, size)
		return
	}
	id, dropped := n.id(), make(chan struct{})
	s.late.Go(func() {
		s.fuse.InodeNotify(id, off, size)
		close(dropped)
	})
	grace := time.NewTimer(staleGrace)
	defer grace.Stop()
	select {
	case <-dropped:
	case <-grace.C:
	}
}

// hasPages notes that the kernel may have pages of the file from now on.
func (n *node) hasPages() {
	if !n.paged.Load() {
		n.paged.Store(true)
	}
}
