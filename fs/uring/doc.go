// Package uring carries FUSE requests over io_uring: the kernel puts a request into memory of the daemon, and one system
// call hands back an answer and fetches the next request. It knows nothing of LaneFS; go-fuse's ProtocolServer is its
// handler (see GoFuse).
//
// The nouns: a Transport serves one FUSE connection. A queue stands for one possible CPU: the kernel puts a request into the
// queue of the CPU on which it was made. A server is a thread with an io_uring of its own and one entry: a header buffer and
// a payload buffer, room for one request. Sizes are bytes.
//
// A server's life, again and again:
//
//  1. the kernel fills the entry, on the server's thread, and completes its command
//  2. the thread handles the request, and writes the answer into the entry
//  3. it submits COMMIT_AND_FETCH, in the system call in which it waits for the next completion
//
// So no request is ever handed from one thread to another, and one that waits holds up its own entry only: the kernel gives
// the next request of the CPU to another server of the queue, of which there are some. It prefers the server that became idle
// last, so a program that waits for each of its requests is served by one thread, on its own CPU. What the kernel reads ahead may go to
// other CPUs (see readTogether).
//
// Who owns an entry: between REGISTER or COMMIT_AND_FETCH and its completion the kernel, then the server's thread.
//
// INIT, FORGET, INTERRUPT and notifications stay on /dev/fuse.
//
// Sources: Linux 6.14 to 6.18, include/uapi/linux/fuse.h ([fuse]), Documentation/filesystems/fuse/fuse-io-uring.rst.
package uring
