package fs

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

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

	// leaving counts the requests that take a name from the file and of which the kernel may not have the answer. See victim.
	leaving atomic.Int32

	// paged says that the kernel may have pages of the file. See dropPages.
	paged atomic.Bool

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

// attrTimeout is how long the kernel may keep attributes. The caller has read them before.
func (n *node) attrTimeout() time.Duration {
	if n.leaving.Load() > 0 {
		return 0
	}
	return attrTimeout
}

// nodes is the table of the nodes that the kernel knows, by inode number, without the root. No lock is taken under mu, and
// nothing waits under it but for memory.
//
// go-fuse counts references too, but tells of a node's end only by OnForget, which may come while another lookup is
// bringing the same node back. Here the count goes up before go-fuse's and down after it, so a node that is not in the
// table is not in go-fuse's either.
type nodes struct {
	mu   sync.Mutex
	live map[uint64]*node // protected by mu

	// nameless are the nodes whose files have lost their last names and are not given back yet: live ones, and those whose
	// inodes are being put. Those that are kept open and were waited for once are false. Protected by mu.
	nameless map[*node]bool

	reclaimed atomic.Int64 // how many without names were put
}

func newNodes() nodes {
	return nodes{live: make(map[uint64]*node), nameless: make(map[*node]bool)}
}

// intern returns the node of in with one more kernel reference, for a reply that carries an entry. It takes over the
// caller's reference on in. a is what in.Attr said.
func (t *nodes) intern(ctx context.Context, parent *node, in *ext4.Inode, a *ext4.Attr) *node {
	ino := uint64(in.Ino())
	t.mu.Lock()
	n := t.live[ino]
	known := n != nil
	if !known {
		n = &node{srv: parent.srv, in: in}
		// Under mu, so that a second lookup of the same inode finds the go-fuse part complete.
		parent.NewInode(ctx, n, gofs.StableAttr{
			Mode: a.Mode & sIFMT,
			Ino:  ino,
			Gen:  uint64(a.Generation),
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

// retain counts one more kernel reference on a node that the kernel knows, for an entry that gives it a name.
func (t *nodes) retain(n *node) {
	t.mu.Lock()
	n.refs++
	delete(t.nameless, n)
	t.mu.Unlock()
}

// get returns the node with that FUSE node ID, nil when the kernel does not know one. The root is not in the table.
func (t *nodes) get(id uint64) *node {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.live[id]
}

// of returns the node of an inode that the caller has a reference on, nil when the kernel does not know one.
func (t *nodes) of(in *ext4.Inode) *node {
	if n := t.get(uint64(in.Ino())); n != nil && n.in == in {
		return n
	}
	return nil
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
	_, nameless := t.nameless[n]
	if gone {
		delete(t.live, id)
		if nameless {
			t.nameless[n] = true // now it is worth waiting for
		}
	}
	t.mu.Unlock()
	if !gone {
		return
	}
	n.in.Put() // outside the lock: freeing a file takes as long as the device takes
	if nameless {
		t.mu.Lock()
		delete(t.nameless, n)
		t.mu.Unlock()
		t.reclaimed.Add(1)
	}
}

// addNameless notes that a file has lost its last name, or was made without one.
func (t *nodes) addNameless(n *node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.live[uint64(n.in.Ino())] == n {
		t.nameless[n] = true
	}
}

// awaited are the files without names that are worth waiting for.
func (t *nodes) awaited() (list []*node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for n, worth := range t.nameless {
		if worth {
			list = append(list, n)
		}
	}
	return list
}

// giveUp says of files without names that were waited for in vain that somebody keeps them.
func (t *nodes) giveUp(list []*node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range list {
		if _, ok := t.nameless[n]; ok && t.live[uint64(n.in.Ino())] == n {
			t.nameless[n] = false
		}
	}
}

// clear drops every node. The kernel sends no FORGET for what it still knew when the mount went away.
func (t *nodes) clear() {
	t.mu.Lock()
	live := slices.Collect(maps.Values(t.live))
	clear(t.live)
	clear(t.nameless)
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
