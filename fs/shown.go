package fs

import (
	"sync/atomic"
	"time"
)

// The kernel keeps the attributes that a reply tells, for a day. A request that changes a file has it drop them, or have those of the reply; but another
// thread's reply, made before the change, may be handled after that. For writes, SETATTR, LINK and UNLINK the kernel counts versions of a file, and drops what
// is older; not for the other requests (fuse_change_attributes_i in fs/fuse/inode.c, and who raises attr_version): new names and removed ones of the directory that they are
// in, a renamed file, extended attributes and access control lists, from which the mode follows, and fallocate. Then a directory that somebody
// else looks at would keep an old time or link count. A notification raises the version. It takes a few microseconds,
// so there is one only if a reply has told the attributes not long ago: the program that asked has handled that reply by then. And a program of one thread has handled a reply when it asks for a change,
// so there is none either while all requests of that kind are one thread's (a notification takes a sixth of the time of a remove).

// shownFor is how long a program may take to handle a reply. It has to get a CPU for that.
const shownFor = 10 * time.Second

var shownSince = time.Now()

// shownNow is the time from shownSince, never 0.
func shownNow() int64 { return int64(time.Since(shownSince)) + 1 }

// callers is which thread asked last for a change, or for attributes, and when another one had, from shownSince.
type callers struct {
	last    atomic.Uint32
	another atomic.Int64
}

// calls notes the thread of such a request, before attributes are read or changed.
func (s *Server) calls(tid uint32) {
	if s.callers.last.Load() != tid {
		s.callers.another.Store(shownNow())
		s.callers.last.Store(tid)
	}
}

// lately says whether at, a time from shownSince, is one and not long ago.
func lately(at int64) bool { return at != 0 && shownNow()-at < int64(shownFor) }

// show notes that a reply is about to tell the attributes, which are read after that.
func (n *node) show() { n.shown.Store(shownNow()) }

// attrsChanged is called before the reply to a request that has changed attributes, and for which the kernel raises no version.
func (n *node) attrsChanged() {
	if lately(n.srv.callers.another.Load()) && lately(n.shown.Load()) {
		n.srv.invalidateAttr(n)
	}
}
