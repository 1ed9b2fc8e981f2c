package main

import "github.com/lanefs/lanefs/blockdev/namespace"

// Pinned memory holds the metadata cache, the journal's copies and file data. The kernel cannot take it back, as it can its own ext4's caches, and where a
// daemon has more than its control group may have, or than the machine has, it is ended.

// leastPinned is the limit of the pinned memory, in bytes, that a daemon has however little memory there is; blocks of 64 KiB need more than that.
const leastPinned = 64 << 20

// mostHostBuffer is how much memory a drive has for itself at most, in bytes, if it asks for it: as Linux's own driver gives (its max_host_mem_size_mb).
const mostHostBuffer = 128 << 20

// hostBuffer is that limit where the daemon may have so much memory: a sixteenth of it.
func hostBuffer(may int64) int64 { return min(may/16, mostHostBuffer) }

// pinned is the limit of the pinned memory, in bytes: what pinned= asks for. Else it is namespace.DefaultPinned, but not more than half of the memory that the
// daemon may have, in bytes, which leaves the rest for its heap, its program and others; a cache that cache= asks for counts as a quarter of it, as by default.
func (cfg *mountConfig) pinned(may int64) int64 {
	if cfg.Pinned != 0 {
		return cfg.Pinned
	}
	return min(max(may/2, leastPinned, 4*min(cfg.Cache, namespace.DefaultPinned)), namespace.DefaultPinned)
}
