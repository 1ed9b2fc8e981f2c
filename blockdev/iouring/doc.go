// Package iouring is a Linux io_uring: its two rings, and the system calls that make it, submit to it and wait for it. It knows no
// operation: what is in an entry is the caller's business. fs/uring has FUSE requests on it, nvmeq/softctl/media a block device's blocks.
//
// The nouns: an SQE (submission queue entry) is what the kernel is to do, a CQE (completion queue entry) what came of it.
//
// Source: include/uapi/linux/io_uring.h of Linux 5.11 to 6.18, io_uring_setup(2), io_uring_enter(2).
package iouring
