// Package uring carries FUSE requests over io_uring: the kernel puts a request into memory of the daemon, and one system
// call hands back an answer and fetches the next request. It knows nothing of LaneFS; go-fuse's ProtocolServer is its
// handler (see GoFuse).
//
// The nouns: a Transport serves one FUSE connection. A queue stands for one possible CPU: the kernel puts a request into the
// queue of the CPU on which it was made. An entry of a queue is room for one request: a header buffer and a payload buffer.
// A server is a thread with an io_uring, bound to a CPU; it serves the queue of that CPU, and its share of the queues of
// CPUs that are offline. Sizes are bytes.
//
// Who owns an entry. Between REGISTER or COMMIT_AND_FETCH and its completion the kernel does; then the server's thread, or
// the goroutine to which it gave the request. Both write the answer into the entry. Only the server's thread submits.
//
// The life of a request:
//
//  1. the kernel fills the header and payload of a free entry, on the server's thread, and completes the entry's command
//  2. the server's thread reaps the completion
//  3. if Handler.Inline says so, the thread handles the request; else a goroutine does, and tells the thread by a message
//     (IORING_REGISTER_SEND_MSG_RING) that the answer is there. Other requests go on meanwhile
//  4. the server's thread submits COMMIT_AND_FETCH, in the system call in which it waits for the next completion
//
// INIT, FORGET, INTERRUPT and notifications stay on /dev/fuse.
//
// Sources: Linux 6.14 to 6.18, include/uapi/linux/fuse.h ([fuse]), include/uapi/linux/io_uring.h ([io_uring]),
// Documentation/filesystems/fuse/fuse-io-uring.rst.
package uring
