// Package engine executes NVMe I/O commands on queue pairs that kernels drive.
//
// The nouns. An Engine owns N lanes of one controller; a lane is one I/O queue pair, the rings by which the CPU hands it work,
// and the kernel code that posts, rings and reaps. A Command is one NVMe I/O command as callers state it; lanes turn it into a
// submission queue entry.
//
// Lock order: the controller's, in which lane.drive is what Queues.Hold takes; then lane.mu, a leaf.
package engine
