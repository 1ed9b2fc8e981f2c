package fs

import "time"

// The kernel keeps the attributes that a reply tells, for a day. A request that changes a file has it drop them, or have those of the reply; but another
// thread's reply, made before the change, may be handled after that. For writes, SETATTR, LINK and UNLINK the kernel counts versions of a file, and drops what
// is older; not for the other requests (fuse_change_attributes_i in fs/fuse/inode.c, and who raises attr_version): new names and removed ones of the directory that they are
// in, a renamed file, extended attributes and access control lists, from which the mode follows, and fallocate. Then a directory that somebody
// else looks at would keep an old time or link count. A notification raises the version. It takes a few microseconds,
// so there is one only if a reply has told the attributes not long ago: the program that asked has handled that reply by then.

// shownFor is how long a program may take to handle a reply. It has to get a CPU for that.
const shownFor = 10 * time.Second

var shownSince = time.Now()

// show notes that a reply is about to tell the attributes, which are read after that.
func (n *node) show() { n.shown.Store(int64(time.Since(shownSince)) + 1) }

// attrsChanged is called before the reply to a request that has changed attributes, and for which the kernel raises no version.
func (n *node) attrsChanged() {
	if at := n.shown.Load(); at != 0 && int64(time.Since(shownSince))-at < int64(shownFor) {
		n.srv.invalidateAttr(n)
	}
}
