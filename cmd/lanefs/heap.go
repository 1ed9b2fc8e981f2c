package main

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/nvmeq/softctl/media"
)

// The heap grows with what programs use: the kernel may know millions of inodes. Go collects when the heap has doubled, so in a small control group the kernel ended a
// daemon half of whose heap was garbage. Near a limit of its own Go collects earlier, for at most half of the CPU time.
//
// While few inodes are known the heap is 4 MiB, and has doubled after 2,500 requests. A collection stops all threads, and interrupts those that wait for a request and keep a Go processor
// (package uring): that was up to a third of the daemon's CPU time for creates and removes. So Go also counts spareHeap, which nobody uses and of which no page is touched, and collects after as many bytes more.

// leastHeap is the limit of Go's memory, in bytes, however little there is beside the pinned memory.
const leastHeap = 32 << 20

const (
	spareBytes = 16 << 20
	spareFrom  = 256 << 20 // the least limit of Go's memory with it: it counts there, too
	hugeBytes  = 32 << 20  // of the heap: what lives, and garbage until it is collected
)

var spareHeap atomic.Pointer[[]byte]

// heapLimit is the limit of Go's memory, in bytes, where the daemon may have that much memory, of which so much is pinned: three quarters of the rest. The last one is
// for the program's text, page tables, what the kernel has for the process and pages of the image.
func heapLimit(may, pinned int64) int64 {
	if may == math.MaxInt64 {
		return may
	}
	return max((may-pinned)/4*3, leastHeap)
}

// limitHeap sets it, and has Go collect later. A user's own settings (GOMEMLIMIT, GOGC) stay.
func (cfg *mountConfig) limitHeap() {
	if debug.SetMemoryLimit(-1) == math.MaxInt64 {
		may := media.MemoryLimit()
		debug.SetMemoryLimit(heapLimit(may, cfg.pinned(may)))
	}
	if os.Getenv("GOGC") == "" {
		collectLater(debug.SetMemoryLimit(-1))
	}
}

// collectLater makes spareHeap, where Go's memory may grow to so many bytes.
func collectLater(limit int64) {
	if limit < spareFrom {
		return
	}
	spare := make([]byte, spareBytes) // first: memory that was never used need not be cleared
	spareHeap.Store(&spare)
	askHugePages()
	runtime.GC() // else the next collection is due when all that is there twice
}

// askHugePages has the kernel use huge pages for the memory that the heap takes next, where it does so for who asks (madvise(2)). To touch a page for the first time is dear on a virtual
// machine: 3,500 of 4 KiB took a third of a second.
func askHugePages() {
	next := make([]byte, hugeBytes)
	_ = unix.Madvise(next, unix.MADV_HUGEPAGE)
	runtime.KeepAlive(next)
}
