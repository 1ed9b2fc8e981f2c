// Package devfuse takes FUSE requests from /dev/fuse, on threads that go where the program is which waits for the answer. go-fuse's ProtocolServer is
// its handler (see exchange.GoFuse).
//
// A request wakes a thread that waits in read(2). The kernel does not know that the program is about to wait for it, so it puts the thread on a
// CPU that stands idle: it sends an interrupt to a CPU that has halted, and the answer sends one back. On a virtual machine these two cost more than most
// requests. So while one program works, and waits for each of its requests, the threads are bound to the CPU where it runs, and have SCHED_IDLE, so
// that the kernel wakes the program there, too (package schedidle). Which CPU that is /proc says of the thread that made the request; it is asked now
// and then (see program). Where several programs work at once, or file data comes in large pieces, the threads run where the scheduler puts them.
// Where SCHED_IDLE cannot be had they follow, too, as long as the program stays: where other programs keep all CPUs busy, each request that crosses to another CPU costs two interrupts.
//
// The nouns: a Transport serves one FUSE connection. A reader is a thread with memory for one request. A few readers wait in read(2), the kernel
// gives a request to the one that has waited longest. A reader that took one, and leaves none that waits, has another one wait, so requests that
// block hold up no others, as long as there are readers. One that finds enough waiting when it has answered is parked. While a program is followed one reader
// waits, and none while it answers; if that takes long the guard of SCHED_IDLE has another one wait (see Transport.relieve).
//
// The kernel copies a WRITE's bytes to the payload of a reader, where the controller takes them, and a READ's from there.
//
// Sources: Linux 6.18, fs/fuse/dev.c (fuse_dev_do_read, fuse_dev_do_write), select_task_rq_fair in kernel/sched/fair.c, proc(5).
package devfuse
