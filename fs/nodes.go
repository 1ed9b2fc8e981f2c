package fs

import (
	"context"
	"sync"
	"sync/atomic"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/lanefs/lanefs/fs/ext4"
)

// node is an inode that the kernel knows.
type node struct {
	gofs.Inode
	srv *Server

	// in is the node's one reference. It is put when refs falls to zero.
	in *ext4.Inode

	// refs mirrors the kernel's count. Protected by nodes.mu. The root's does not matter: it is never forgotten.
	refs uint64

	// writers counts the open files that may write.
	writers atomic.Int64

	// kept says that somebody keeps the file although it has no names. See reclaim.
	kept atomic.Bool

	// noDefaultACL remembers that a directory has no default ACL.
	noDefaultACL atomic.Bool
}

// id is the node's number for the kernel.
func (n *node) id() uint64 {
	if n == n.srv.root {
		return fuse.FUSE_ROOT_ID
	}
	return uint64(n.in.Ino())
}

// nodes is the table of the nodes that the kernel knows, by inode number, without the root.
//
// go-fuse counts references too, but tells of a node's end only by OnForget, which may come while another lookup is
// bringing the same node back. Here the count goes up before go-fuse's and down after it, so a node that is not in the
// table is not in go-fuse's either.
type nodes struct {
	mu    sync.Mutex
	live  map[uint64]*node   // protected by mu
	going map[*node]struct{} // protected by mu: no longer in live, in not yet put

	reclaimed atomic.Int64 // how many without names were put
}

// intern returns the node of in with one more kernel reference, for a reply that carries an entry. It takes over the
// caller's reference on in.
func (t *nodes) intern(ctx context.Context, parent *node, in *ext4.Inode) *node {
	ino := uint64(in.Ino())
	t.mu.Lock()
	n := t.live[ino]
	known := n != nil
	if !known {
		n = &node{srv: parent.srv, in: in}
		// Under mu, so that a second lookup of the same inode finds the go-fuse part complete.
		parent.NewInode(ctx, n, gofs.StableAttr{
			Mode: in.Attr().Mode & sIFMT,
			Ino:  ino,
			Gen:  uint64(in.Generation()),
		})
		t.live[ino] = n
	}
	n.refs++
	t.mu.Unlock()
	if known {
		in.Put()
	}
	return n
}

// retain counts one more kernel reference on a node that the kernel knows.
func (t *nodes) retain(n *node) {
	t.mu.Lock()
	n.refs++
	t.mu.Unlock()
}

// get returns the node with that FUSE node ID, nil when the kernel does not know one. The root is not in the table.
func (t *nodes) get(id uint64) *node {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.live[id]
}

// forget takes back count references.
func (t *nodes) forget(id, count uint64) {
	t.mu.Lock()
	n := t.live[id]
	if n == nil {
		t.mu.Unlock()
		return
	}
	n.refs -= min(count, n.refs)
	gone := n.refs == 0
	if gone {
		delete(t.live, id)
		t.going[n] = struct{}{}
	}
	t.mu.Unlock()
	if !gone {
		return
	}
	nameless := n.in.Attr().Links == 0 // outside the lock: a file may be busy for as long as the device takes
	n.in.Put()
	if nameless {
		t.reclaimed.Add(1)
	}
	t.mu.Lock()
	delete(t.going, n)
	t.mu.Unlock()
}

// clear drops every node. The kernel sends no FORGET for what it still knew when the mount went away.
func (t *nodes) clear() {
	t.mu.Lock()
	live := t.live
	t.live = make(map[uint64]*node)
	t.mu.Unlock()
	for _, n := range live {
		n.in.Put()
	}
}

func (t *nodes) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.live)
}
