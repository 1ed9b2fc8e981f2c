package blockmap

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
)

var errNoSpace = errors.New("no space")

// memNode is a node in memory.
type memNode struct {
	b    disk.Block
	data []byte
	refs int
}

func (n *memNode) Block() disk.Block { return n.b }
func (n *memNode) Data() []byte      { return n.data }
func (n *memNode) Verified() bool    { return true }
func (n *memNode) SetVerified()      {}
func (n *memNode) Put()              { n.refs-- }

// memNodes is a volume of nothing but nodes.
type memNodes struct {
	size   int
	at     map[disk.Block]*memNode
	next   disk.Block
	left   int // nodes that can still be allocated; negative: no limit
	sealed map[disk.Block]string
	read   func(b disk.Block) ([]byte, error) // nil: nothing but what is in at
}

func (m *memNodes) Get(b disk.Block) (extent.Node, error) {
	n := m.at[b]
	if n == nil && m.read != nil {
		data, err := m.read(b)
		if err != nil {
			return nil, err
		}
		n = &memNode{b: b, data: data}
		m.at[b] = n
	}
	if n == nil {
		return nil, fmt.Errorf("block %d is no node", b)
	}
	n.refs++
	return n, nil
}

func (m *memNodes) Alloc(disk.Block) (extent.Node, error) {
	if m.left == 0 {
		return nil, errNoSpace
	}
	m.left--
	n := &memNode{b: m.next, data: make([]byte, m.size), refs: 1}
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

func (m *memNodes) Dirty(n extent.Node) error {
	m.sealed[n.Block()] = string(n.Data())
	return nil
}

func (m *memNodes) RootDirty() error { return nil }

func newTree(size int) (*Tree, *memNodes) {
	m := &memNodes{size: size, at: map[disk.Block]*memNode{}, next: 1 << 31, left: -1, sealed: map[disk.Block]string{}}
	t := &Tree{Ino: 12, Root: make([]byte, extent.RootSize), Nodes: m, NodeSize: size, Blocks: MaxPblk}
	return t, m
}

// model is a map and what it should say.
type model struct {
	t    *testing.T
	tree *Tree
	mem  *memNodes
	m    map[uint32]disk.Block
	next disk.Block
}

func (m *model) insert(l, n uint32, gap disk.Block) {
	n = min(n, m.tree.MaxBlock()-l)
	for i := range n {
		if m.m[l+i] != 0 {
			n = i
			break
		}
	}
	if n == 0 {
		return
	}
	m.next += gap
	done, err := m.tree.Insert(extent.Extent{Lblk: l, Len: n, Pblk: m.next})
	if !errors.Is(err, errNoSpace) {
		require.NoError(m.t, err)
		require.Equal(m.t, n, done)
	}
	for i := range done {
		m.m[l+i] = m.next + disk.Block(i)
	}
	m.next += disk.Block(done)
}

func (m *model) remove(l, n uint32, limit int) {
	end := min(l+n, m.tree.MaxBlock())
	for end > l {
		next, err := m.tree.Remove(l, end, limit, func(x extent.Extent) error {
			for i := range x.Len {
				require.Equal(m.t, x.Pblk+disk.Block(i), m.m[x.Lblk+i])
				require.True(m.t, x.Lblk+i >= l && x.Lblk+i < end)
				delete(m.m, x.Lblk+i)
			}
			return nil
		})
		require.NoError(m.t, err)
		require.Less(m.t, next, end)
		end = next
	}
}

func (m *model) check() {
	nodes, seen := 0, 0
	err := m.tree.Walk(func(disk.Block, int) error { nodes++; return nil }, func(x extent.Extent) error {
		for i := range x.Len {
			if m.m[x.Lblk+i] != x.Pblk+disk.Block(i) {
				return fmt.Errorf("block %d: %v", x.Lblk+i, x)
			}
			seen++
		}
		return nil
	})
	require.NoError(m.t, err)
	require.Equal(m.t, len(m.m), seen)
	require.Equal(m.t, len(m.mem.at), nodes, "nodes leaked")
	for b, n := range m.mem.at {
		require.Zero(m.t, n.refs)
		require.Equal(m.t, m.mem.sealed[b], string(n.data), "changed without Dirty")
		require.False(m.t, node(n.data).empty(), "empty node kept")
	}
	l := uint32(0)
	require.NoError(m.t, m.tree.MapRange(0, m.tree.MaxBlock(), func(x extent.Extent) error {
		require.Equal(m.t, l, x.Lblk)
		l = x.End()
		for i := range x.Len {
			want := disk.Block(0)
			if !x.Hole() {
				want = x.Pblk + disk.Block(i)
			}
			if want != m.m[x.Lblk+i] {
				return fmt.Errorf("block %d: map says %d, model %d", x.Lblk+i, want, m.m[x.Lblk+i])
			}
		}
		return nil
	}))
	require.Equal(m.t, m.tree.MaxBlock(), l)
}

func TestRandomOperations(t *testing.T) {
	for seed := range uint64(10) {
		tree, mem := newTree(32) // 8 numbers a node: 12 + 8 + 64 + 512 blocks
		require.EqualValues(t, 596, tree.MaxBlock())
		m := &model{t, tree, mem, map[uint32]disk.Block{}, 1000}
		r := rand.New(rand.NewPCG(seed, 9))
		for i := range 600 {
			l, n := r.Uint32N(tree.MaxBlock()), 1+r.Uint32N(1+r.Uint32N(60))
			switch k := r.IntN(20); {
			case k < 10:
				m.insert(l, n, disk.Block(r.IntN(2)))
			case k < 16:
				m.remove(l, n, 1+r.IntN(5))
			case k < 18:
				mem.left = r.IntN(5)
			default:
				mem.left = -1
			}
			if i%8 == 0 {
				m.check()
			}
		}
		m.remove(0, tree.MaxBlock(), 2)
		m.check()
		require.Empty(t, mem.at)
	}
}

func TestRefuses(t *testing.T) {
	tree, _ := newTree(32)
	insert := func(x extent.Extent) error { _, err := tree.Insert(x); return err }
	require.NoError(t, insert(extent.Extent{Lblk: 10, Len: 20, Pblk: 100}))
	require.ErrorIs(t, insert(extent.Extent{Lblk: 29, Len: 2, Pblk: 500}), extent.ErrMapped)
	require.ErrorIs(t, insert(extent.Extent{Lblk: 40, Len: 2, Pblk: 500, Unwritten: true}), ErrUnwritten)
	require.ErrorIs(t, insert(extent.Extent{Lblk: 590, Len: 7, Pblk: 500}), extent.ErrRange)
	require.ErrorAs(t, insert(extent.Extent{Lblk: 40, Len: 2, Pblk: MaxPblk - 1}), new(*disk.CorruptError))
	x, err := tree.Map(1000, 5)
	require.NoError(t, err)
	require.Equal(t, extent.Extent{Lblk: 1000, Len: 5}, x)
	end, err := tree.Remove(1000, 2000, 5, nil)
	require.NoError(t, err)
	require.EqualValues(t, 1000, end)
}

// A node that points to itself, and pointers to what is no file's.
func TestCorruptMaps(t *testing.T) {
	tree, mem := newTree(32)
	_, err := tree.Insert(extent.Extent{Lblk: 100, Len: 1, Pblk: 77})
	require.NoError(t, err)
	require.NoError(t, tree.CheckRoot())
	top := node(tree.Root).ptr(directs + 2)
	require.NotZero(t, top)
	for i := range 8 {
		node(mem.at[top].data).setPtr(i, top)
	}
	require.ErrorAs(t, tree.Check(), new(*disk.CorruptError))
	_, err = tree.Remove(0, tree.MaxBlock(), 1<<30, func(extent.Extent) error { return nil })
	_ = err // whatever it says, it ends

	tree, _ = newTree(32)
	_, err = tree.Insert(extent.Extent{Lblk: 0, Len: 100, Pblk: 77})
	require.NoError(t, err)
	tree.Valid = func(b disk.Block, n uint32) bool { return b < 150 && b >= 1<<31 }
	_, err = tree.Map(99, 1)
	require.ErrorAs(t, err, new(*disk.CorruptError))
	require.ErrorAs(t, tree.CheckRoot(), new(*disk.CorruptError))
	_, err = tree.Remove(0, 100, 10, nil)
	require.ErrorAs(t, err, new(*disk.CorruptError))
	require.ErrorAs(t, tree.Check(), new(*disk.CorruptError))
}

// FuzzHostile runs every operation on a map of arbitrary bytes: nothing may panic or run for ever.
func FuzzHostile(f *testing.F) {
	f.Add(make([]byte, extent.RootSize), []byte{}, uint32(0), uint32(1))
	tree, mem := newTree(32)
	_, err := tree.Insert(extent.Extent{Lblk: 5, Len: 200, Pblk: 1000})
	require.NoError(f, err)
	var blocks []byte
	for b := disk.Block(1 << 31); mem.at[b] != nil; b++ {
		blocks = append(blocks, mem.at[b].data...)
	}
	f.Add(tree.Root, blocks, uint32(3), uint32(90))
	f.Fuzz(func(t *testing.T, root, blocks []byte, l, n uint32) {
		if len(root) != extent.RootSize {
			return
		}
		for op := range 3 {
			tree, mem := newTree(32)
			copy(tree.Root, root)
			for i := 0; i+32 <= len(blocks) && i < 32*64; i += 32 {
				mem.at[mem.next] = &memNode{b: mem.next, data: append([]byte{}, blocks[i:i+32]...)}
				mem.next++
			}
			switch op {
			case 0:
				_ = tree.Check()
				_, _ = tree.Map(l, n)
				_, _, _ = tree.Next(l)
			case 1:
				_, _ = tree.Insert(extent.Extent{Lblk: l, Len: n & 0xffff, Pblk: 99})
			case 2:
				_, _ = tree.Remove(l, n, 100, func(extent.Extent) error { return nil })
			}
			for b, x := range mem.at {
				require.Zero(t, x.refs, "node %d", b)
			}
		}
	})
}
