package extent

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// deepTree is a tree of the greatest depth, with nodes of 64 bytes.
func deepTree(t testing.TB) (*Tree, *memNodes) {
	tree, mem := newTree(64)
	r := rand.New(rand.NewPCG(1, 2))
	for {
		l := r.Uint32N(1 << 20)
		_, err := tree.Insert(Extent{l &^ 1, 1, disk.Block(1000 + 2*l), false})
		if err != nil {
			require.ErrorIs(t, err, ErrMapped)
		}
		if d, _ := tree.Depth(); d == MaxDepth {
			return tree, mem
		}
	}
}

func TestDepthFive(t *testing.T) {
	tree, mem := deepTree(t)
	require.NoError(t, tree.Check())
	nodes, _, err := tree.Count()
	require.NoError(t, err)
	require.Len(t, mem.at, int(nodes))
	end, err := tree.Remove(0, MaxBlock, 1<<30, func(Extent) error { return nil })
	require.NoError(t, err)
	require.Zero(t, end)
	require.Empty(t, mem.at)
}

// One bit wrong anywhere in a node is found by its checksum when the node is first read.
func TestChecksumFindsEveryBit(t *testing.T) {
	tree, mem := newTree(64)
	for i := range uint32(30) {
		_, err := tree.Insert(Extent{i * 2, 1, disk.Block(1000 + 2*i), false})
		require.NoError(t, err)
	}
	require.NoError(t, mem.forget())
	for _, n := range mem.at {
		for bit := range len(n.data) * 8 {
			n.data[bit/8] ^= 1 << (bit % 8)
			require.ErrorAs(t, tree.Check(), new(*disk.CorruptError), "bit %d", bit)
			n.data[bit/8] ^= 1 << (bit % 8)
			require.NoError(t, mem.forget())
		}
		break
	}
	require.NoError(t, tree.Check())
}

func TestCorruptTrees(t *testing.T) {
	for name, spoil := range map[string]func(*Tree, *memNodes){
		"magic":      func(t *Tree, _ *memNodes) { t.Root[0]++ },
		"depth":      func(t *Tree, _ *memNodes) { node(t.Root).setDepth(6) },
		"less deep":  func(t *Tree, _ *memNodes) { node(t.Root).setDepth(1) },
		"too many":   func(t *Tree, _ *memNodes) { node(t.Root).setEntries(5) },
		"none":       func(t *Tree, _ *memNodes) { node(t.Root).setEntries(0) },
		"beyond":     func(t *Tree, _ *memNodes) { t.Blocks = 1 << 40 },
		"not a file": func(t *Tree, _ *memNodes) { t.Valid = func(disk.Block, uint32) bool { return false } },
		"short":      func(t *Tree, _ *memNodes) { t.Root = t.Root[:59] },
		"wrong key":  func(t *Tree, _ *memNodes) { n := node(t.Root); n.setKey(n.entries()-1, n.key(n.entries()-1)+2) },
		"unsorted":   func(t *Tree, _ *memNodes) { node(t.Root).setKey(0, 1<<31) },
		"a loop": func(t *Tree, m *memNodes) {
			b := node(t.Root).child(0)
			indexEntry(0, b)(m.at[b].data, 0)
			disk.SetExtentBlockCsum(t.Seed, m.at[b].data)
		},
	} {
		t.Run(name, func(t *testing.T) {
			tree, mem := deepTree(t)
			require.NoError(t, mem.forget())
			spoil(tree, mem)
			require.ErrorAs(t, tree.Check(), new(*disk.CorruptError))
		})
	}
}

// FuzzHostile runs every operation on a tree of arbitrary bytes: nothing may panic or run for ever.
func FuzzHostile(f *testing.F) {
	tree, mem := newTree(64)
	for i := range uint32(6) {
		_, err := tree.Insert(Extent{i * 4, 2, disk.Block(1000 + 4*i), i%2 == 0})
		require.NoError(f, err)
	}
	var blocks []byte
	for b := disk.Block(1 << 40); mem.at[b] != nil; b++ {
		blocks = append(blocks, mem.at[b].data...)
	}
	f.Add(tree.Root, blocks, uint32(3), uint32(9))
	f.Add(make([]byte, RootSize), []byte{}, uint32(0), uint32(1))
	f.Fuzz(func(t *testing.T, root, blocks []byte, l, n uint32) {
		if len(root) != RootSize {
			return
		}
		for op := range 5 {
			tree, mem := newTree(64)
			tree.Checksums = false
			copy(tree.Root, root)
			for i := 0; i+64 <= len(blocks) && i < 64*64; i += 64 {
				b := mem.next
				mem.next++
				mem.at[b] = &memNode{m: mem, b: b, data: append([]byte{}, blocks[i:i+64]...)}
			}
			drop := func(Extent) error { return nil }
			switch op {
			case 0:
				_ = tree.Check()
				_, _ = tree.Map(l, n)
				_, _, _ = tree.Last()
			case 1:
				_, _ = tree.Insert(Extent{l, n & 0xffff, 99, true})
			case 2:
				_, _ = tree.Remove(l, n, 100, drop)
			case 3:
				_ = tree.Convert(l, n&0xffff, true)
			case 4:
				_ = tree.Convert(l, n&0xffff, false)
			}
			for b, x := range mem.at {
				require.Zero(t, x.refs, "node %d", b)
			}
		}
	})
}
