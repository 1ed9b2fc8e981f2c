package extent

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

func extents(t *testing.T, tree *Tree) []Extent {
	t.Helper()
	var out []Extent
	require.NoError(t, tree.Walk(nil, func(x Extent) error { out = append(out, x); return nil }))
	return out
}

func TestInsertJoins(t *testing.T) {
	for name, c := range map[string]struct{ in, want []Extent }{
		"append":          {[]Extent{{0, 4, 100, false}, {4, 4, 104, false}}, []Extent{{0, 8, 100, false}}},
		"prepend":         {[]Extent{{4, 4, 104, false}, {0, 4, 100, false}}, []Extent{{0, 8, 100, false}}},
		"between":         {[]Extent{{0, 2, 100, false}, {4, 2, 104, false}, {2, 2, 102, false}}, []Extent{{0, 6, 100, false}}},
		"other state":     {[]Extent{{0, 4, 100, false}, {4, 4, 104, true}}, []Extent{{0, 4, 100, false}, {4, 4, 104, true}}},
		"elsewhere":       {[]Extent{{0, 4, 100, false}, {4, 4, 105, false}}, []Extent{{0, 4, 100, false}, {4, 4, 105, false}}},
		"fills up":        {[]Extent{{0, 32000, 100, false}, {32000, 1000, 32100, false}}, []Extent{{0, 32768, 100, false}, {32768, 232, 32868, false}}},
		"long":            {[]Extent{{0, 70000, 100, false}}, []Extent{{0, 32768, 100, false}, {32768, 32768, 32868, false}, {65536, 4464, 65636, false}}},
		"long, unwritten": {[]Extent{{0, 40000, 100, true}}, []Extent{{0, 32767, 100, true}, {32767, 7233, 32867, true}}},
		"last block":      {[]Extent{{MaxBlock - 1, 1, 7, false}}, []Extent{{MaxBlock - 1, 1, 7, false}}},
	} {
		t.Run(name, func(t *testing.T) {
			tree, _ := newTree(1024)
			for _, x := range c.in {
				n, err := tree.Insert(x)
				require.NoError(t, err)
				require.Equal(t, x.Len, n)
			}
			require.Equal(t, c.want, extents(t, tree))
		})
	}
}

func TestInsertRefuses(t *testing.T) {
	tree, _ := newTree(1024)
	_, err := tree.Insert(Extent{10, 10, 100, false})
	require.NoError(t, err)
	for _, l := range []uint32{5, 10, 15, 19} {
		_, err := tree.Insert(Extent{l, 8, 500, false})
		require.ErrorIs(t, err, ErrMapped, "at %d", l)
	}
	_, err = tree.Insert(Extent{MaxBlock - 1, 2, 500, false})
	require.ErrorIs(t, err, ErrRange)
	_, err = tree.Insert(Extent{100, 2, tree.Blocks - 1, false})
	require.ErrorAs(t, err, new(*disk.CorruptError))
	tree.Valid = func(b disk.Block, n uint32) bool { return b != 700 }
	_, err = tree.Insert(Extent{100, 2, 700, false})
	require.ErrorAs(t, err, new(*disk.CorruptError))
	require.Len(t, extents(t, tree), 1)
}

// A file that grows, in one place or in two at once, fills its leaves.
func TestGrowingFilesFillLeaves(t *testing.T) {
	const per = 84 // entries of a 1 KiB node
	for name, starts := range map[string][]uint32{"one end": {0}, "two ends": {0, 1 << 20}} {
		t.Run(name, func(t *testing.T) {
			tree, _ := newTree(1024)
			for i := range uint32(10 * per) {
				for k, s := range starts {
					_, err := tree.Insert(Extent{s + i, 1, disk.Block(1000 + 3*i + uint32(k)<<20), false})
					require.NoError(t, err)
				}
			}
			nodes, n, err := tree.Count()
			require.NoError(t, err)
			require.EqualValues(t, len(starts)*10*per, n)
			require.LessOrEqual(t, nodes, uint64(len(starts)*10*5/4+1))
		})
	}
}

// Writing into a preallocation front to back moves one boundary and never needs a node.
func TestConvertFrontToBackNeedsNoNode(t *testing.T) {
	tree, mem := newTree(1024)
	_, err := tree.Insert(Extent{0, 1000, 5000, true})
	require.NoError(t, err)
	mem.left = 0
	for l := uint32(0); l < 1000; l += 10 {
		require.NoError(t, tree.Convert(l, 10, false))
	}
	require.Equal(t, []Extent{{0, 1000, 5000, false}}, extents(t, tree))
	for l := uint32(1000); l > 0; l -= 10 {
		require.NoError(t, tree.Convert(l-10, 10, true))
	}
	require.Equal(t, []Extent{{0, 1000, 5000, true}}, extents(t, tree))
}

func TestConvertLongest(t *testing.T) {
	tree, _ := newTree(1024)
	_, err := tree.Insert(Extent{0, 32768, 5000, false})
	require.NoError(t, err)
	require.NoError(t, tree.Convert(0, 32768, true))
	require.Equal(t, []Extent{{0, 32767, 5000, true}, {32767, 1, 37767, true}}, extents(t, tree))
	require.NoError(t, tree.Convert(0, 32768, false))
	require.Equal(t, []Extent{{0, 32768, 5000, false}}, extents(t, tree))
}

func TestNoSpaceChangesNothing(t *testing.T) {
	tree, mem := newTree(64)
	for i := range uint32(4) {
		_, err := tree.Insert(Extent{i * 10, 5, disk.Block(100 * (i + 1)), false})
		require.NoError(t, err)
	}
	mem.left = 0
	before := extents(t, tree)
	_, err := tree.Insert(Extent{100, 5, 900, false})
	require.ErrorIs(t, err, errNoSpace)
	_, err = tree.Remove(11, 13, 100, func(Extent) error { return errors.New("nothing may be freed") })
	require.ErrorIs(t, err, errNoSpace)
	require.ErrorIs(t, tree.Convert(11, 2, true), errNoSpace)
	require.Equal(t, before, extents(t, tree))
	require.Empty(t, mem.at)
}

// A tree that loses most of its extents, a few at a time, loses most of its nodes.
func TestRemoveJoinsNodes(t *testing.T) {
	tree, mem := newTree(1024)
	for l := uint32(0); l < 40000; l += 2 {
		_, err := tree.Insert(Extent{l, 1, disk.Block(1000 + l), false})
		require.NoError(t, err)
	}
	for l := uint32(0); l < 40000; l += 80 {
		_, err := tree.Remove(l+2, l+80, 1000, func(Extent) error { return nil })
		require.NoError(t, err)
	}
	require.NoError(t, mem.forget())
	nodes, n, err := tree.Count()
	require.NoError(t, err)
	require.EqualValues(t, 500, n)
	require.LessOrEqual(t, nodes, uint64(500/21+2)) // leaves of 84, a quarter full
	require.Len(t, mem.at, int(nodes))
	d, err := tree.Depth()
	require.NoError(t, err)
	require.Equal(t, 2, d)
}
