// Package gate keeps descriptors of foreign file systems out of the mount's daemon.
//
// A client may pass any descriptor, also of a file on a FUSE file system of its own. close(2) of that waits for the file
// system's answer to FLUSH, and nothing but the answer ends the wait: SIGKILL does not, nor does the end of the process, which
// then does not end (measured, Linux 6.18; the request is sent with FR_FORCE). So who has ever received such a descriptor can
// be held for as long as the client likes. The kernel offers no other way to lose one: dup2(2), exec and exit flush too.
//
// So clients' messages are received by a process of its own, the gate: this executable again, with no capabilities and nothing
// of the mount's. It holds nothing that anybody else could wait for, and nobody waits for it to end.
//
// The nouns. The daemon has a Gate, to which it hands each connection that it accepts; for it it gets one end of a pair of
// sockets. In the process a visitor relays messages between the client and the other end, one request at a time. What the
// client passes is looked at without asking its file system: files of the mount, memfds, and descriptors of devices' memory
// go on to the daemon; in the place of everything else goes /dev/null, which the daemon refuses as it would refuse the other.
//
// Foreign descriptors are closed by a goroutine, and so a thread, of its own. While that lasts the connection waits; after
// patience it is cut, and the daemon ends all that it held. A user of whom maxLate closings are late is refused, and everybody
// is after maxLateAll, so that the threads are bounded.
package gate
