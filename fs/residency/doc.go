// Package residency is the pool of device memory that holds ranges of files: which ranges are resident, which clients hold them, and whether
// they are current. It knows gpu.Memory and makes it reachable for the controller. It knows no GPU's API, no sockets and no file system.
//
// The nouns. A Pool has a size in bytes and allocates memory in granules: the granularity of the runtime's exportable memory (VMM), or
// of plain device memory where there is no VMM. A range is bytes [off, off+n) of one file in one Memory, as they were at a
// generation. A Hold is one client's use of a range, or of a Memory of its own. Generations count up over the whole pool. A range is
// current as long as no change has touched its bytes since it was read; every change gives the ranges that it touches a new generation.
//
// Ownership. Ranges belong to the pool. All holds of a file's current range share it. A range with holds is never evicted. A range
// without holds stays until its memory is needed (the least recently used goes first), and is freed at once when it is no longer
// current. A file is identified by inode number and generation, so a new file never gets the bytes of a deleted one.
//
// Coherence. A range is in the pool's tables before its first byte is read. A change while it is read makes it stale, like a change
// after that. Map then reads again, maxLoads times at most, and after that returns the range as it is. Changed is called after a
// change and before the call that made it returns, so a Map that begins later reads the new bytes.
//
// Freeing plain device memory waits for running kernels. The lanes' kernels end by themselves, so the wait ends.
package residency
