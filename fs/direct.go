package fs

import (
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/lanefs/lanefs/fs/ext4"
)

// Direct writes bypass the kernel's page cache. The kernel drops its pages of the range when such a write begins. It does not drop
// them again when an asynchronous one (aio) ends, so pages that a program has read meanwhile would keep the old bytes. The server
// therefore notifies the kernel to drop them before it replies.
//
// That notification waits for pages that are being read or written back, and one that has dirty pages written back waits for that (see Lseek). Those
// reads and writes are requests of their own, whose number is limited (maxBackground, maxInflight, the threads of a CPU's queue). If requests that wait for such pages
// took all places, no request could proceed. So only a few of them wait without a limit, and by /dev/fuse only while somebody else reads it (see Server.pagesGone).
const (
	maxFreeDrops = 14                     // requests, of at most maxRequest bytes, that may wait without a limit
	staleGrace   = 100 * time.Millisecond // how long the others wait
)

// direct says whether a WRITE is one of direct I/O. The kernel names the lock owner in those alone, also in asynchronous ones
// (fuse_send_write in fs/fuse/file.c; fuse_send_write_pages, which writes what is in locked pages of the cache, does not). O_DIRECT among its
// flags says what the descriptor is like at the moment: a program may set it by fcntl(2) in the middle of a write to the cache, and dropping
// a page that the kernel keeps locked until this very request is answered, as it does new ones that are written in part, would wait for ever.
func direct(in *fuse.WriteIn) bool { return in.WriteFlags&fuse.WRITE_LOCKOWNER != 0 }

// writeDirect is store for direct I/O. If it cannot store all of c it returns the error instead of a short count, because the kernel
// turns a short asynchronous direct write into EIO, whatever the reason.
func (n *node) writeDirect(c ext4.Content, off int64, may ext4.May) (uint32, syscall.Errno) {
	done, err := n.store(c, off, may)
	if err != nil {
		done = 0
	}
	n.dropPages(off, int64(len(c.Bytes)))
	return n.written(done, err)
}

// dropPages makes the kernel drop the pages that a direct write has made stale, or all of the file's if that is cheaper (pages.go). The kernel has no
// pages of a file that it has only ever accessed by direct I/O.
func (n *node) dropPages(off, size int64) {
	if !n.mayHavePages() {
		return
	}
	s := n.srv
	drop := func() { s.fuse.InodeNotify(n.id(), off, size) }
	if !s.opt.WriteBack && n.dropsAll(1) {
		drop = func() { n.dropAll() }
	}
	s.pagesGone(drop)
}

// pagesGone calls drop, which notifies the kernel to drop pages, and reports whether it has returned: beyond a few at a time a request waits for staleGrace
// only, and drop goes on.
func (s *Server) pagesGone(drop func()) bool {
	taken := s.device.Load().Waits()
	defer s.drops.Add(-1)
	if s.drops.Add(1) <= s.freeDrops() && taken {
		drop()
		return true
	}
	dropped := make(chan struct{})
	s.background.Go(func() {
		drop()
		close(dropped)
	})
	grace := time.NewTimer(staleGrace)
	defer grace.Stop()
	select {
	case <-dropped:
		return true
	case <-grace.C:
		return false
	}
}
