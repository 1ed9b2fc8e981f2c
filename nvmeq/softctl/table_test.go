package softctl

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// mappings makes an address space of regions that no memory is behind, as add does.
func (s *addressSpace) mapping(size uint64) uint64 {
	r := region{base: s.next, size: size}
	s.next += size + iovaGap
	s.table.Store(&table{s.table.Load().root.insert(&r)})
	return r.base
}

// TestTable: a table that changes at random finds what a list would, and older tables what they had.
func TestTable(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	s := newAddressSpace(nil)
	var bases []uint64
	const size = 8192
	for range 4000 {
		if len(bases) == 0 || rng.IntN(5) > 1 {
			bases = append(bases, s.mapping(size))
		} else {
			i := rng.IntN(len(bases))
			old := s.table.Load()
			root, found := old.root.remove(bases[i])
			require.True(t, found)
			s.table.Store(&table{root})
			var hint *region
			_, _, ok := old.find(bases[i], size, &hint)
			require.True(t, ok, "a table never changes")
			bases = slices.Delete(bases, i, i+1)
		}
		a := iovaFirst + rng.Uint64N(s.next-iovaFirst)
		i, found := slices.BinarySearch(bases, a)
		if !found {
			i--
		}
		want := i >= 0 && a-bases[i] < size
		var hint *region
		r, off, ok := s.table.Load().find(a, 1, &hint)
		require.Equal(t, want, ok)
		if ok {
			require.Equal(t, bases[i], r.base)
			require.EqualValues(t, a-bases[i], off)
			_, _, ok = s.table.Load().find(bases[i], size+1, &hint)
			require.False(t, ok, "not in one piece")
		}
	}
	_, found := s.table.Load().root.remove(s.next)
	require.False(t, found)
}

// TestTableOfMany: what one mapping more takes does not grow with the number of them: 20,000 took 9 GB to make and as much to
// take apart, and an unmount more than a minute.
func TestTableOfMany(t *testing.T) {
	const many = 20000
	s := newAddressSpace(nil)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var bases []uint64
	for range many {
		bases = append(bases, s.mapping(4096))
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(many, func(i, j int) { bases[i], bases[j] = bases[j], bases[i] })
	for _, b := range bases {
		root, found := s.table.Load().root.remove(b)
		require.True(t, found)
		s.table.Store(&table{root})
	}
	runtime.ReadMemStats(&after)
	require.Nil(t, s.table.Load().root)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(256<<20), "bytes that 40,000 changes allocated")
}
