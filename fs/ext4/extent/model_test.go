package extent

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// cell is what a model knows of one logical block.
type cell struct {
	p disk.Block
	u bool
}

// model is a tree and what it should say.
type model struct {
	t    *testing.T
	tree *Tree
	mem  *memNodes
	m    map[uint32]cell
	top  uint32 // logical blocks used by the test
	next disk.Block
	deep int
}

func newModel(t *testing.T, size int, top uint32) *model {
	tree, mem := newTree(size)
	return &model{t: t, tree: tree, mem: mem, m: map[uint32]cell{}, top: top, next: 1000}
}

func (m *model) insert(l, n uint32, u bool, gap disk.Block) {
	for i := range n {
		if _, ok := m.m[l+i]; ok {
			n = i
			break
		}
	}
	if n == 0 {
		return
	}
	m.next += gap
	x := Extent{l, n, m.next, u}
	done, err := m.tree.Insert(x)
	if !errors.Is(err, errNoSpace) {
		require.NoError(m.t, err)
		require.Equal(m.t, n, done)
	}
	for i := range done {
		m.m[l+i] = cell{x.Pblk + disk.Block(i), u}
	}
	m.next += disk.Block(done)
}

func (m *model) remove(l, n uint32, limit int) {
	end := l + n
	for end > l {
		next, err := m.tree.Remove(l, end, limit, func(x Extent) error {
			for i := range x.Len {
				c, ok := m.m[x.Lblk+i]
				require.True(m.t, ok, "block %d freed, was not mapped", x.Lblk+i)
				require.Equal(m.t, cell{x.Pblk + disk.Block(i), x.Unwritten}, c)
				require.True(m.t, x.Lblk+i >= l && x.Lblk+i < end)
				delete(m.m, x.Lblk+i)
			}
			return nil
		})
		if errors.Is(err, errNoSpace) {
			return
		}
		require.NoError(m.t, err)
		require.Less(m.t, next, end)
		require.NoError(m.t, m.tree.Check())
		end = next
	}
}

func (m *model) convert(l, n uint32, u bool) {
	err := m.tree.Convert(l, n, u)
	if errors.Is(err, errNoSpace) {
		// A part at the front may be converted: take over which.
		for i := range n {
			if c, ok := m.m[l+i]; ok {
				x, err := m.tree.Map(l+i, 1)
				require.NoError(m.t, err)
				c.u = x.Unwritten
				m.m[l+i] = c
			}
		}
		return
	}
	require.NoError(m.t, err)
	for i := range n {
		if c, ok := m.m[l+i]; ok {
			c.u = u
			m.m[l+i] = c
		}
	}
}

// check compares the whole tree with the model.
func (m *model) check() {
	require.NoError(m.t, m.mem.forget())
	var extents uint64
	seen := 0
	nodes := map[disk.Block]bool{}
	err := m.tree.Walk(func(b disk.Block, _ int) error {
		if nodes[b] {
			return fmt.Errorf("node %d twice", b)
		}
		nodes[b] = true
		return nil
	}, func(x Extent) error {
		extents++
		for i := range x.Len {
			c, ok := m.m[x.Lblk+i]
			if !ok || c != (cell{x.Pblk + disk.Block(i), x.Unwritten}) {
				return fmt.Errorf("block %d: tree says %v, model %v %v", x.Lblk+i, x, c, ok)
			}
			seen++
		}
		return nil
	})
	require.NoError(m.t, err)
	require.Equal(m.t, len(m.m), seen)
	require.Len(m.t, nodes, len(m.mem.at), "nodes leaked")
	require.NoError(m.t, exactKeys(m.tree, node(m.tree.Root)))
	d, err := m.tree.Depth()
	require.NoError(m.t, err)
	m.deep = max(m.deep, d)
	if len(m.m) == 0 {
		require.Zero(m.t, d)
		require.Empty(m.t, m.mem.at)
	}
}

// exactKeys says whether every key is the first logical block below it, as e2fsck demands.
func exactKeys(t *Tree, n node) error {
	if n.depth() == 0 {
		return nil
	}
	for i := range n.entries() {
		buf, err := t.Nodes.Get(n.child(i))
		if err != nil {
			return err
		}
		c := node(buf.Data())
		buf.Put()
		if c.entries() == 0 || c.key(0) != n.key(i) {
			return fmt.Errorf("key %d of node at depth %d", n.key(i), n.depth())
		}
		if err := exactKeys(t, c); err != nil {
			return err
		}
	}
	return nil
}

// probe compares single answers of Map.
func (m *model) probe(l uint32) {
	x, err := m.tree.Map(l, 1<<20)
	require.NoError(m.t, err)
	require.Equal(m.t, l, x.Lblk)
	require.NotZero(m.t, x.Len)
	for i := range x.Len {
		c, ok := m.m[l+i]
		require.Equal(m.t, !x.Hole(), ok)
		if ok {
			require.Equal(m.t, cell{x.Pblk + disk.Block(i), x.Unwritten}, c)
		}
		if i > 4096 {
			break
		}
	}
}

func (m *model) step(r *rand.Rand) {
	l := r.Uint32N(m.top)
	n := 1 + r.Uint32N(1+r.Uint32N(20))
	switch k := r.IntN(38); {
	case k < 20:
		m.insert(l, n, r.IntN(3) == 0, disk.Block(r.IntN(2)))
	case k < 26:
		m.remove(l, n, 1+r.IntN(5))
	case k < 34:
		m.convert(l, n, r.IntN(2) == 0)
	case k < 35:
		m.mem.left = r.IntN(4)
	case k < 36:
		m.mem.left = -1
	default:
		m.probe(l)
	}
}

func TestRandomOperations(t *testing.T) {
	for _, c := range []struct {
		size     int
		top      uint32
		minDepth int
	}{{64, 900, 3}, {64, 300, 2}, {112, 4000, 2}, {1024, 4000, 1}} {
		for seed := range uint64(6) {
			t.Run(fmt.Sprintf("node %d/blocks %d/seed %d", c.size, c.top, seed), func(t *testing.T) {
				m := newModel(t, c.size, c.top)
				r := rand.New(rand.NewPCG(seed, 1))
				for i := range 2000 {
					m.step(r)
					if i%16 == 0 {
						m.check()
					}
				}
				require.GreaterOrEqual(t, m.deep, c.minDepth)
				m.mem.left = -1
				m.remove(0, MaxBlock-1, 3)
				m.check()
			})
		}
	}
}

func FuzzOperations(f *testing.F) {
	f.Add(uint64(1), uint16(300))
	f.Fuzz(func(t *testing.T, seed uint64, steps uint16) {
		m := newModel(t, 64, 600)
		r := rand.New(rand.NewPCG(seed, 2))
		for range steps % 2000 {
			m.step(r)
		}
		m.check()
	})
}
