// Package exchange is what the ways by which FUSE requests come have in common: a request and its answer in memory of the way's own, and who
// answers. Package uring brings requests by io_uring, package devfuse by read(2) of /dev/fuse.
//
// Sizes are bytes. Sources: Linux 6.14 to 6.18, include/uapi/linux/fuse.h ([fuse]).
package exchange
