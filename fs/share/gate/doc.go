// Package gate keeps clients' sockets and descriptors out of the mount's daemon.
//
// The problem. A client may pass any descriptor, also of a file on a FUSE file system of its own. close(2) of that waits for the file
// system's reply to FLUSH, and only the reply ends the wait. SIGKILL does not, and the process then does not end (measured, Linux 6.18;
// the request is sent with FR_FORCE). So a process that has received such a descriptor can be blocked for as long as the client
// likes. There is no other way to get rid of one: dup2(2), exec and exit flush too, and closing a socket closes the descriptors in its
// queue. Files of the mount itself are as bad: the mount's own daemon would wait for itself, and could not be killed.
//
// So a process of its own, the gate, accepts clients and receives their messages. It is this executable again (its main calls RunIfChild
// first), with no capabilities, a list of allowed system calls, and only the descriptors that it was given. It has nothing that
// another process could wait for, and no process waits for its end.
//
// The nouns. The daemon has a Gate, from which it accepts a Conn for each client. In the process a relay passes messages between a
// client and its Conn, one request at a time. A Right is a descriptor that a client passed, of one of three sorts. The gate finds out
// which without a request to the descriptor's file system. Of a file of the mount (Own) the daemon learns the inode and how it was
// opened, after the gate has made the kernel write back the file's dirty pages. Memfds and descriptors of device memory (Memory) are
// passed on. Of anything else (Foreign) the daemon learns only that it was there.
//
// Foreign descriptors are closed by a goroutine of their own, which takes a thread. The connection waits for that, for closeTimeout at
// most; then it is closed, and the daemon closes its handles. A user with maxSlow closings that outlast closeTimeout gets no new
// connection, and no user gets one if there are maxSlowAll. That bounds the threads.
//
// The gate also watches the daemon. The daemon has threads that wait for its own mount: a notification that drops pages waits for
// requests that use the pages. If it is killed at that moment it never ends and never replies. So the kernel sends the gate the signal
// of a parent's death (PR_SET_PDEATHSIG), and the gate makes the kernel abort the mount's connection.
package gate
