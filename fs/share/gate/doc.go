// Package gate keeps clients' sockets and descriptors out of the mount's daemon.
//
// A client may pass any descriptor, also of a file on a FUSE file system of its own. close(2) of that waits for the file
// system's answer to FLUSH, and nothing but the answer ends the wait: SIGKILL does not, nor does the end of the process, which
// then does not end (measured, Linux 6.18; the request is sent with FR_FORCE). So who has ever received such a descriptor can
// be held for as long as the client likes. The kernel offers no other way to lose one: dup2(2), exec and exit flush too, and
// who closes a socket closes what waits in it. A file of the mount itself is no better: the mount's own daemon would wait for itself,
// and could not be killed.
//
// So clients are accepted, and their messages received, by a process of its own, the gate: this executable again (its main calls RunIfChild first), with no capabilities,
// a list of system calls that it may make, and no descriptors but those that it was given. It holds nothing that anybody else could
// wait for, and nobody waits for it to end.
//
// The nouns. The daemon has a Gate, which gives it a Conn for each client that comes. In the process a visitor relays
// messages between the client and the Conn, one request at a time. What the client passes is looked at without asking its file
// system. Of a file of the mount the daemon hears its inode and how it was opened, after the gate has had the kernel write
// back what it has of the file. Memfds and descriptors of devices' memory go on. Everything else is foreign: the daemon hears only
// that it was there.
//
// Foreign descriptors are closed by a goroutine, and so a thread, of its own. While that lasts the connection waits; after
// patience it is cut, and the daemon ends all that it held. A user of whom maxLate closings are late is refused, and everybody
// is after maxLateAll, so that the threads are bounded.
//
// The gate is also who sees the daemon die. A daemon has threads that wait for its own mount: to have the kernel forget pages is to
// wait for requests that use them. Killed at that moment it would never end, nor answer. So the kernel tells the gate, by the
// signal that a parent's death sends, and the gate has it abort the mount's connection.
package gate
