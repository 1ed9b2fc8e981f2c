// Package share lets programs have files of a mount as device memory, over a unix socket: package wire has the protocol. It
// knows sockets and who may do what; how residency works is fs/residency's business, and how files are read is fs's.
//
// Possession of an open descriptor is the permission. A program passes one with each request; the daemon checks that it is
// a regular file of this mount and how it was opened, takes a reference on the inode, and closes it. No path is looked up.
// What clients send comes by way of a process of its own, which keeps descriptors of other file systems away: package gate.
//
// Who owns what. A Server has connections; each is served by one goroutine, which does one request after the other and
// owns the connection's handles: holds on the pool's memory, memory that the program registered, files, rings. All of them
// end with the connection. A ring has a goroutine of its own that takes submissions, and workers.
//
// What a client sees may lag behind nothing: the generation of each mapping lies on the connection's notice board, memory
// that the client can read and nobody but the daemon can write, and is stored there before the change that causes it
// returns. So a slow client holds up nobody. A client that does not read its replies is cut off.
package share
