package fs

import (
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/lanefs/lanefs/fs/ext4"
)

// nodes is the table of the inodes that the kernel knows, by inode number, without the root. The kernel may know millions, so of most
// there is a record alone. A node, with its loaded inode, is there
//
//   - while a request works on it or a file is open: it has users;
//   - as long as the kernel knows it, if it is a file without names, which the last reference to its inode would free: it is never idle;
//   - after its last use, until maxIdle others were used since: it is idle.
//
// Any other node is dropped, and loaded again by number and generation when a request needs it (Server.use).
//
// Nothing waits under mu but for memory. The volume's table of inodes, which Inode.Ref locks, is the only lock taken under it.
type nodes struct {
	mu     sync.Mutex
	known  map[uint32]record // protected by mu
	loaded map[uint32]*node  // protected by mu; all are known
	idle   idleNodes         // protected by mu

	// nameless has the nodes of files without names whose space is not free yet: loaded nodes, and those whose inodes are being put.
	// false: a request has waited for it in vain, since it is open. Protected by mu.
	nameless map[*node]bool

	reclaimed atomic.Int64 // how many files without names were freed
}

// record is what there is of every inode that the kernel knows. It has no pointers, so that the garbage collector skips the table.
type record struct {
	refs       uint64 // the kernel's count: one for every reply with an entry, taken back by FORGET; and the bit told
	generation uint32
	paged      uint32 // of a node that was dropped
}

// told is the bit in record.refs that keeps node.fresh of a node that was dropped.
const told = 1 << 63

func newNodes() nodes {
	return nodes{known: make(map[uint32]record), loaded: make(map[uint32]*node), nameless: make(map[*node]bool)}
}

// intern returns the node of in, in use, with one more kernel reference, for a reply that carries an entry. It takes over the caller's
// reference on in. generation is the inode's, and single says whether it has one name only.
func (t *nodes) intern(s *Server, in *ext4.Inode, generation uint32, single bool) *node {
	ino := in.Ino()
	t.mu.Lock()
	r := t.known[ino]
	r.refs++
	r.generation = generation
	t.known[ino] = r
	n := t.useLocked(ino, true)
	have := n != nil
	if !have {
		n = t.loadedLocked(s, in)
	}
	n.fresh = single && n.leaving.Load() == 0
	t.mu.Unlock()
	if have {
		in.Put()
	}
	return n
}

// retain counts one more kernel reference on a node in use, for an entry that gives it a name.
func (t *nodes) retain(n *node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r, ok := t.known[n.in.Ino()]; ok {
		r.refs++
		t.known[n.in.Ino()] = r
	}
	delete(t.nameless, n)
}

// useLocked returns a loaded node, in use, nil if it is not loaded. For changes see Server.useFor, here and below.
func (t *nodes) useLocked(ino uint32, changes bool) *node {
	n := t.loaded[ino]
	if n == nil {
		return nil
	}
	if n.users == 0 {
		if _, nameless := t.nameless[n]; !nameless { // see done
			t.idle.remove(n)
		}
	}
	n.users++
	n.fresh = n.fresh && !changes
	return n
}

// loadedLocked makes the node of in, which is known and not loaded, in use. It takes over a reference on in.
func (t *nodes) loadedLocked(s *Server, in *ext4.Inode) *node {
	n := &node{srv: s, in: in, users: 1}
	n.paged.Store(int64(t.known[in.Ino()].paged))
	t.loaded[in.Ino()] = n
	return n
}

// fresh reports whether the kernel knows an inode and most likely has its attributes.
func (t *nodes) fresh(ino uint32) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.loaded[ino]; n != nil {
		return n.fresh
	}
	return t.known[ino].refs&told != 0
}

// use returns a loaded node, in use. If it is nil, known says whether the kernel knows the inode, and of which generation.
func (t *nodes) use(id uint64, changes bool) (n *node, generation uint32, known bool) {
	if id > math.MaxUint32 {
		return nil, 0, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.useLocked(uint32(id), changes); n != nil {
		return n, 0, true
	}
	r, known := t.known[uint32(id)]
	return nil, r.generation, known
}

// of returns the node of an inode that the caller has a reference on, in use, nil if the kernel does not know it.
func (t *nodes) of(s *Server, in *ext4.Inode, changes bool) *node {
	t.mu.Lock()
	defer t.mu.Unlock()
	ino := in.Ino()
	if n := t.loaded[ino]; n != nil && n.in != in {
		return nil
	}
	if n := t.useLocked(ino, changes); n != nil {
		return n
	}
	r, known := t.known[ino]
	if !known {
		return nil
	}
	n := t.loadedLocked(s, in.Ref())
	n.show() // it may have been, before it was dropped
	n.fresh = r.refs&told != 0 && !changes
	return n
}

// get returns a loaded node that somebody uses, nil if there is none. It counts no use.
func (t *nodes) get(id uint64) *node {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.loaded[uint32(id)]; id <= math.MaxUint32 && n != nil && n.users > 0 {
		return n
	}
	return nil
}

// knows reports whether the kernel knows an inode.
func (t *nodes) knows(id uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, known := t.known[uint32(id)]
	return known && id <= math.MaxUint32
}

// done ends a use. At the last one the node is idle, and the node that has been idle for the longest may be dropped for it.
func (t *nodes) done(n *node) {
	t.mu.Lock()
	n.users--
	var drop *node
	_, nameless := t.nameless[n]
	switch {
	case n.users > 0:
	case n.forgotten:
		drop = n
	case !nameless:
		t.idle.add(n)
		if t.idle.len > maxIdle {
			drop = t.idle.oldest
			t.unloadLocked(drop)
		}
	}
	t.mu.Unlock()
	if drop != nil {
		t.drop(drop)
	}
}

// unloadLocked takes an idle node out of the table and leaves its record.
func (t *nodes) unloadLocked(n *node) {
	ino := n.in.Ino()
	t.idle.remove(n)
	delete(t.loaded, ino)
	r := t.known[ino]
	r.paged = pagedPages(n.paged.Load())
	r.refs &^= told
	if n.fresh {
		r.refs |= told
	}
	t.known[ino] = r
}

// drop puts the inode of a node that is out of the table and has no users. A file without names is freed by that, which waits for the
// device.
func (t *nodes) drop(n *node) {
	n.in.Put()
	t.mu.Lock()
	_, nameless := t.nameless[n]
	delete(t.nameless, n)
	t.mu.Unlock()
	if nameless {
		t.reclaimed.Add(1)
	}
}

// forget subtracts count references. At zero the inode is not known any more.
func (t *nodes) forget(id, count uint64) {
	if id > math.MaxUint32 {
		return
	}
	ino := uint32(id)
	t.mu.Lock()
	r, known := t.known[ino]
	r.refs -= min(count, r.refs&^told)
	if !known || r.refs&^told > 0 {
		if known {
			t.known[ino] = r
		}
		t.mu.Unlock()
		return
	}
	n := t.loaded[ino]
	if n != nil {
		_, nameless := t.nameless[n]
		if nameless {
			t.nameless[n] = true // it is freed below, so waiting is worthwhile
		} else if n.users == 0 {
			t.idle.remove(n)
		}
		n.forgotten = true
	}
	unused := n != nil && n.users == 0
	delete(t.loaded, ino)
	delete(t.known, ino)
	t.mu.Unlock()
	if unused {
		t.drop(n)
	}
}

// clear drops every node. The kernel sends no FORGET for nodes that it knew at the unmount, and no RELEASE after an abort.
func (t *nodes) clear() {
	t.mu.Lock()
	loaded := slices.Collect(maps.Values(t.loaded))
	clear(t.known)
	clear(t.loaded)
	clear(t.nameless)
	t.idle = idleNodes{}
	t.mu.Unlock()
	for _, n := range loaded {
		n.in.Put()
	}
}

// len is how many inodes the kernel knows.
func (t *nodes) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.known)
}
