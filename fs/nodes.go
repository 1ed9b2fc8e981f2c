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

	// in is the node's reference. It is put when refs falls to zero.
	in *ext4.Inode

	// refs mirrors the kernel's count. Protected by nodes.mu. It is not used for the root, which is never forgotten.
	refs uint64

	// writers counts the open files that may write.
	writers atomic.Int64

	// leaving counts the requests that remove a name of the file and whose replies the kernel may not have handled yet. See victim.
	leaving atomic.Int32

	// paged is true if the kernel may have pages of the file. See dropPages.
	paged atomic.Bool

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

// attrTimeout returns how long the kernel may cache attributes. The caller must have read them before the call.
func (n *node) attrTimeout() time.Duration {
	if n.leaving.Load() > 0 {
		return 0
	}
	return attrTimeout
}

// nodes is the table of the nodes that the kernel knows, by inode number, without the root. No lock is taken under mu, and
// nothing waits under it but for memory.
//
// go-fuse counts references too, but it reports a node's end only by OnForget, which it may call while another lookup returns the same
// node again. The count here goes up before go-fuse's and down after it, so a node that is not in this table is not in go-fuse's either.
type nodes struct {
	mu   sync.Mutex
	live map[uint64]*node // protected by mu

	// nameless has the nodes of files without names whose space is not free yet: live nodes, and those whose inodes are being put. false:
	// a request has waited for it in vain, since it is open. Protected by mu.
	nameless map[*node]bool

	reclaimed atomic.Int64 // how many files without names were freed
}

func newNodes() nodes {
	return nodes{live: make(map[uint64]*node), nameless: make(map[*node]bool)}
}

// intern returns the node of in with one more kernel reference, for a reply that carries an entry. It takes over the
// caller's reference on in. a is the result of in.Attr.
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

// forget subtracts count references. At zero the node's reference on its inode is put.
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
			t.nameless[n] = true // it is freed below, so waiting is worthwhile
		}
	}
	t.mu.Unlock()
	if !gone {
		return
	}
	n.in.Put() // without mu: freeing a file waits for the device
	if nameless {
		t.mu.Lock()
		delete(t.nameless, n)
		t.mu.Unlock()
		t.reclaimed.Add(1)
	}
}

// addNameless records that a file has lost its last name, or was created without one.
func (t *nodes) addNameless(n *node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.live[uint64(n.in.Ino())] == n {
		t.nameless[n] = true
	}
}

// awaited returns the files without names that are worth waiting for.
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

// giveUp records that files without names were waited for in vain, because programs have them open.
func (t *nodes) giveUp(list []*node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range list {
		if _, ok := t.nameless[n]; ok && t.live[uint64(n.in.Ino())] == n {
			t.nameless[n] = false
		}
	}
}

// clear drops every node. The kernel sends no FORGET for nodes that it knew at the unmount.
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
