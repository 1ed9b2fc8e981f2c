package main

import (
	"math"
	"runtime/debug"

	"github.com/lanefs/lanefs/nvmeq/softctl/media"
)

// The heap grows with what programs use: the kernel may know millions of inodes. Go collects when the heap has doubled, so in a small control group the kernel ended a
// daemon half of whose heap was garbage. Near a limit of its own Go collects earlier, for at most half of the CPU time.

// leastHeap is the limit of Go's memory, in bytes, however little there is beside the pinned memory.
const leastHeap = 32 << 20

// heapLimit is the limit of Go's memory, in bytes, where the daemon may have that much memory, of which so much is pinned: three quarters of the rest. The last one is
// for the program's text, page tables, what the kernel has for the process and pages of the image.
func heapLimit(may, pinned int64) int64 {
	if may == math.MaxInt64 {
		return may
	}
	return max((may-pinned)/4*3, leastHeap)
}

// limitHeap sets it. A user's own (GOMEMLIMIT) stays.
func (cfg *mountConfig) limitHeap() {
	if debug.SetMemoryLimit(-1) == math.MaxInt64 {
		may := media.MemoryLimit()
		debug.SetMemoryLimit(heapLimit(may, cfg.pinned(may)))
	}
}
