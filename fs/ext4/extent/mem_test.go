package extent

import (
	"errors"
	"fmt"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

var errNoSpace = errors.New("no space")

// memNode is a node in memory.
type memNode struct {
	m        *memNodes
	b        disk.Block
	data     []byte
	verified bool
	refs     int
}

func (n *memNode) Block() disk.Block { return n.b }
func (n *memNode) Data() []byte      { return n.data }
func (n *memNode) Verified() bool    { return n.verified }
func (n *memNode) SetVerified()      { n.verified = true }
func (n *memNode) Put() {
	n.refs--
	if n.refs < 0 {
		panic("node put too often")
	}
}

// memNodes is a volume of nothing but nodes, and counts references.
type memNodes struct {
	size      int
	at        map[disk.Block]*memNode
	next      disk.Block
	left      int // nodes that can still be allocated; negative: no limit
	rootDirty int
	gets      int
	dirty     map[disk.Block]bool
	sealed    map[disk.Block]string // contents when last dirty
}

func newMemNodes(size int) *memNodes {
	return &memNodes{size: size, at: map[disk.Block]*memNode{}, next: 1 << 40, left: -1,
		dirty: map[disk.Block]bool{}, sealed: map[disk.Block]string{}}
}

func (m *memNodes) Get(b disk.Block) (Node, error) {
	n := m.at[b]
	if m.gets++; m.gets > 1<<20 {
		panic("too many reads: an endless loop?")
	}
	if n == nil {
		return nil, fmt.Errorf("block %d is no node", b)
	}
	n.refs++
	return n, nil
}

func (m *memNodes) Alloc(disk.Block) (Node, error) {
	if m.left == 0 {
		return nil, errNoSpace
	}
	m.left--
	n := &memNode{m: m, b: m.next, data: make([]byte, m.size), refs: 1}
	m.at[n.b] = n
	m.next++
	return n, nil
}

func (m *memNodes) Free(b disk.Block) error {
	if m.at[b] == nil {
		return fmt.Errorf("free of block %d, which is no node", b)
	}
	delete(m.at, b)
	delete(m.sealed, b)
	if m.left >= 0 {
		m.left++
	}
	return nil
}

func (m *memNodes) Dirty(n Node) error {
	m.dirty[n.Block()] = true
	m.sealed[n.Block()] = string(n.Data())
	return nil
}

func (m *memNodes) RootDirty() error { m.rootDirty++; return nil }

// forget makes all nodes unverified, as if read again, and reports nodes that are held or were changed silently.
func (m *memNodes) forget() error {
	m.gets = 0
	for b, n := range m.at {
		n.verified = false
		if n.refs != 0 {
			return fmt.Errorf("node %d is held %d times", b, n.refs)
		}
		if s, ok := m.sealed[b]; ok && s != string(n.data) {
			return fmt.Errorf("node %d changed without Dirty", b)
		}
	}
	return nil
}

func newTree(size int) (*Tree, *memNodes) {
	m := newMemNodes(size)
	t := &Tree{Ino: 12, Root: make([]byte, RootSize), Nodes: m, NodeSize: size, Blocks: 1 << 47, Checksums: true, Seed: 0xdeadbeef}
	Format(t.Root)
	return t, m
}
