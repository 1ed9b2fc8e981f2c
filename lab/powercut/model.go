package powercut

import (
	"maps"
	"slices"

	"golang.org/x/sys/unix"
)

// model is one worker's part of the volume in every state. State k is the one after operation k; operations count from 1. The
// worker changes it as it runs; afterwards it is only read.
type model struct {
	worker int
	block  int64
	now    int // the last operation
	next   int // id of the next new file

	hist    map[int][]dated // every version of every node
	places  map[int][]place // where each node has names now
	held    map[int]bool    // files that the worker holds open
	tainted map[int]int     // operations that failed half way, by file
	meta    []int           // meta[k]: the last operation up to k that changed metadata
	ops     []op            // ops[k-1] is operation k
	results []result        // the same
	inodes  map[uint64]int  // ids of what was there at the beginning
	top     [2]string       // names of the two directories that the worker uses
}

// The two directories: one of the worker's own, and one that all workers share, where its names have a prefix.
const (
	ownDir    = 0
	sharedDir = 1
)

type place struct {
	dir  int
	name string
}

// dated is a node as it was from operation op on.
type dated struct {
	op int
	n  *node
}

// node is a file in one state. It is not changed once it is in the history.
type node struct {
	mode     uint32
	uid, gid uint32
	links    int // names; not counted for directories
	size     int64
	cells    []slot // of a regular file, by logical block
	target   string
	xattrs   map[string]string
	entries  map[string]int // of a directory
	stored   int            // the last operation that changed the inode
}

func (n *node) kind() uint32 { return n.mode & unix.S_IFMT }

// slot is a logical block of a file.
type slot struct {
	*cell          // nil where nothing was written
	unwritten bool // the file has the block, but reads zeroes
}

// cell is a block that a file was given. What was written to it in place are its versions; a file that is given another
// block has another cell. The bytes past the file's size are zero.
type cell struct{ versions []version }

type version struct {
	op   int
	data []byte
}

// reads reports whether the slot has bytes.
func (s slot) reads() bool { return s.cell != nil && !s.unwritten }

// last is what the cell holds after all operations.
func (c *cell) last() []byte {
	return c.versions[len(c.versions)-1].data
}

// at is node id in state k, nil if there is none.
func (m *model) at(id, k int) *node {
	h := m.hist[id]
	i, ok := slices.BinarySearchFunc(h, k, func(d dated, k int) int { return d.op - k })
	if !ok {
		i--
	}
	if i < 0 {
		return nil
	}
	return h[i].n
}

// cur is node id now.
func (m *model) cur(id int) *node {
	h := m.hist[id]
	return h[len(h)-1].n
}

// edit returns a copy of a node for the current operation to change. touched is set if the operation writes the inode.
func (m *model) edit(id int, touched bool) *node {
	h := m.hist[id]
	if k := len(h) - 1; k >= 0 && h[k].op == m.now {
		if touched {
			h[k].n.stored = m.now
		}
		return h[k].n
	}
	n := *m.cur(id)
	if n.entries != nil {
		n.entries = maps.Clone(n.entries)
	}
	n.cells = slices.Clone(n.cells)
	if touched {
		n.stored = m.now
	}
	m.hist[id] = append(h, dated{m.now, &n})
	return &n
}

func (m *model) add(id int, n *node) {
	n.stored = m.now
	m.hist[id] = append(m.hist[id], dated{m.now, n})
	m.next = max(m.next, id+1)
}

// newModel is the model of a worker on a volume that holds t.
func newModel(worker int, block int64, top [2]string, t *Tree) *model {
	m := &model{worker: worker, block: block, next: 2, top: top, hist: map[int][]dated{}, places: map[int][]place{},
		held: map[int]bool{}, tainted: map[int]int{}, meta: []int{0}, inodes: map[uint64]int{}}
	root := t.Nodes[t.Root]
	m.adopt(t, root.Entries[top[ownDir]], ownDir)
	shared := &node{mode: unix.S_IFDIR | 0o755, entries: map[string]int{}}
	m.add(sharedDir, shared)
	dir := t.Nodes[root.Entries[top[sharedDir]]]
	for _, name := range slices.Sorted(maps.Keys(dir.Entries)) {
		if m.owns(name) {
			m.adoptEntry(t, sharedDir, shared, name, dir.Entries[name])
		}
	}
	return m
}

// owns reports whether a name in the shared directory is the worker's.
func (m *model) owns(name string) bool {
	return len(name) > len(m.top[ownDir]) && name[:len(m.top[ownDir])] == m.top[ownDir] && name[len(m.top[ownDir])] == '-'
}

func (m *model) adopt(t *Tree, ino uint64, id int) {
	x := t.Nodes[ino]
	m.inodes[ino] = id
	n := &node{mode: x.Mode, uid: x.UID, gid: x.GID, size: x.Size, target: x.Target, xattrs: x.Xattrs}
	m.add(id, n)
	switch n.kind() {
	case unix.S_IFREG:
		for off := int64(0); off < x.Size; off += m.block {
			b := make([]byte, m.block)
			copy(b, x.Content[off:])
			// It may be a hole, which reads as zeroes. The check allows that, as it allows any older version.
			n.cells = append(n.cells, slot{cell: &cell{versions: []version{{0, b}}}})
		}
	case unix.S_IFDIR:
		n.entries = map[string]int{}
		for _, name := range slices.Sorted(maps.Keys(x.Entries)) {
			m.adoptEntry(t, id, n, name, x.Entries[name])
		}
	}
}

func (m *model) adoptEntry(t *Tree, dir int, n *node, name string, ino uint64) {
	id, ok := m.inodes[ino]
	if !ok {
		id = m.next
		m.adopt(t, ino, id)
	}
	n.entries[name] = id
	m.cur(id).links++
	m.places[id] = append(m.places[id], place{dir, name})
}
