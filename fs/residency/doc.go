// Package residency is the pool of device memory that holds ranges of files: which are resident, who holds them, and whether
// they are still what the file has. It knows gpu.Memory and how to have the controller reach it; it knows no GPU's API, no
// sockets and no file system.
//
// The nouns. A Pool has a size in bytes and gives memory out in granules, the granularity of the runtime's exportable
// memory (VMM, or plain device memory where there is none: there a free waits for running kernels, which end by themselves). A Range is bytes [off, off+n) of one file in one Memory, as they were at a generation. A Hold is one client's
// use of a Range, or of a Memory of its own. Generations count up over the whole pool: a Range is current as long as the
// generation it was read at is its file range's own; every change gives those that it touches a new one.
//
// Who owns what. A Range belongs to the pool. Holds of a file's current range share it. What somebody holds is never
// evicted; what nobody holds stays for the next one who asks, until its place is needed (least recently used first), and
// goes at once when it is no longer current. A file is named by number and generation, so that a deleted file's bytes are
// never taken for its successor's.
//
// Coherence. A Range is in the pool's books before its first byte is read. So a change during the reading makes it stale,
// like a change after it: Map then reads again, and after maxLoads times gives what it has, stale as it is. Changed is
// called after a change and before whoever made it is told; a Map that begins later reads the new bytes.
package residency
