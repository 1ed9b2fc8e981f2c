package fs

import (
	"sync/atomic"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/lanefs/lanefs/fs/ext4"
)

// node is a loaded inode that the kernel knows. See nodes.
type node struct {
	srv *Server
	in  *ext4.Inode // one reference, put when the node is dropped

	users     int   // requests that work on the node, and open files. Protected by nodes.mu, not used for the root
	forgotten bool  // the kernel has forgotten the node: its last user drops it. Protected by nodes.mu
	newer     *node // in the list of idle nodes. Protected by nodes.mu
	older     *node // as newer

	// fresh is true if the kernel was told the file's only name and its attributes, and no request came for it since but such as ask for its extended
	// attributes: it need not be told them again, and would ask if it did not have them any more. Protected by nodes.mu.
	fresh bool

	// shown is when a reply last told the attributes, from shownSince; 0: none has. See attrsChanged.
	shown atomic.Int64

	// writers counts the open files that may write.
	writers atomic.Int64

	// leaving counts the requests that remove a name of the file and whose replies the kernel may not have handled yet. See victim.
	leaving atomic.Int32

	// paged is how many pages of the file the kernel may have, 0 for none; told is how many ranges it was told to drop meanwhile; dropped is true
	// once it was told to drop all, and dropping how many such notifications are under way; mapped is true if the file was written through a memory map. See pages.go.
	paged    atomic.Int64
	told     atomic.Int64
	dropped  atomic.Bool
	dropping atomic.Int32
	mapped   atomic.Bool

	// noDefaultACL remembers that a directory has no default ACL.
	noDefaultACL atomic.Bool
}

// id returns the FUSE node ID.
func (n *node) id() uint64 {
	if n == n.srv.root {
		return fuse.FUSE_ROOT_ID
	}
	return uint64(n.in.Ino())
}

// done ends a use of the node. No lock is held, since dropping a node may wait for the device.
func (n *node) done() {
	if n != n.srv.root {
		n.srv.nodes.done(n)
	}
}

// attrTimeout returns how long the kernel may cache attributes. The caller must have read them before the call.
func (n *node) attrTimeout() time.Duration {
	if n.leaving.Load() > 0 {
		return 0
	}
	return attrTimeout
}
