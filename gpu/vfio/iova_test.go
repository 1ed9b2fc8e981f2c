package vfio

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// What intel-iommu with 39 bits offers, in the lab.
var intel39 = []interval{{0, 0xfedfffff}, {0xfef00000, 1<<39 - 1}}

func TestAllocator(t *testing.T) {
	a, err := newAllocator(intel39, []interval{{0x100000000, 0x1003fffff}}, 0xfffffffffffff000)
	require.NoError(t, err)
	one, err := a.alloc(4096)
	require.NoError(t, err)
	require.Equal(t, IOVA(0x100400000), one, "the first address above 4 GiB that is not reserved")
	two, err := a.alloc(4 << 20)
	require.NoError(t, err)
	require.Zero(t, two%(2<<20))
	require.Greater(t, two, one+4096, "a gap")
	n, err := a.release(one)
	require.NoError(t, err)
	require.Equal(t, uint64(4096), n)
	three, err := a.alloc(4096)
	require.NoError(t, err)
	require.NotEqual(t, one, three, "an address is not used again at once")
	_, err = a.release(one)
	require.ErrorContains(t, err, "no mapping begins there")
	_, err = a.alloc(4095)
	require.ErrorContains(t, err, "multiple of the IOMMU's page")
}

func TestAllocatorRanges(t *testing.T) {
	for _, c := range []struct {
		name             string
		usable, reserved []interval
		pages            uint64
		free             []interval
		err              string
	}{
		{"all addresses", []interval{{0, ^uint64(0)}}, nil, 1 << 12, []interval{{iovaLeast, ^uint64(0)}}, ""},
		{"cut in the middle", []interval{{0, 0xffffff}}, []interval{{0x200000, 0x2fffff}}, 1 << 12, []interval{{iovaLeast, 0x1fffff}, {0x300000, 0xffffff}}, ""},
		{"ragged ends", []interval{{0x100001, 0x104ffe}}, nil, 1 << 12, []interval{{0x101000, 0x103fff}}, ""},
		{"large pages", []interval{{0x108000, 0x12ffff}}, nil, 1 << 16, []interval{{0x110000, 0x12ffff}}, ""},
		{"unordered", []interval{{0x400000, 0x4fffff}, {0x200000, 0x2fffff}}, nil, 0, []interval{{0x200000, 0x2fffff}, {0x400000, 0x4fffff}}, ""},
		{"top", []interval{{^uint64(0) - 10, ^uint64(0)}, {0x200000, 0x2fffff}}, nil, 0, []interval{{0x200000, 0x2fffff}}, ""},
		{"backwards", []interval{{5, 4}, {0x200000, 0x2fffff}}, []interval{{9, 8}}, 0, []interval{{0x200000, 0x2fffff}}, ""},
		{"nothing", []interval{{0, iovaLeast}}, nil, 0, nil, "no usable IOVAs"},
		{"overlap", []interval{{0x200000, 0x2fffff}, {0x280000, 0x3fffff}}, nil, 0, nil, "overlapping"},
		{"huge pages only", []interval{{0, ^uint64(0)}}, nil, 1 << 21, nil, "smallest page is 2097152"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, err := newAllocator(c.usable, c.reserved, c.pages)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.free, a.free)
		})
	}
}

func TestAllocatorFills(t *testing.T) {
	a, err := newAllocator([]interval{{0x200000, 0x20ffff}}, nil, 0)
	require.NoError(t, err)
	var got []IOVA
	for {
		at, err := a.alloc(4096)
		if err != nil {
			require.ErrorContains(t, err, "no room for 4096 bytes of IOVA: 16 mappings are in use")
			break
		}
		got = append(got, at)
	}
	require.Len(t, got, 16, "the gaps are used when there is nothing else")
	for _, i := range []int{3, 1, 2, 0} {
		_, err := a.release(got[i])
		require.NoError(t, err)
	}
	for _, at := range got[4:] {
		_, err := a.release(at)
		require.NoError(t, err)
	}
	require.Equal(t, []interval{{0x200000, 0x20ffff}}, a.free, "what was given back grows together")
}

// Whatever is asked: allocations lie in usable, unreserved addresses, never overlap, and all come back.
func FuzzAllocator(f *testing.F) {
	f.Add(uint64(1<<20), uint64(1<<39), uint64(0xfee00000), uint64(0xfeefffff), uint8(0), []byte{1, 2, 200, 3, 128, 129})
	f.Add(uint64(0), ^uint64(0), uint64(0), uint64(0), uint8(4), []byte{255, 254, 10, 128})
	f.Fuzz(func(t *testing.T, first, last, holeFirst, holeLast uint64, shift uint8, ops []byte) {
		usable, hole := interval{first, last}, interval{holeFirst, holeLast}
		a, err := newAllocator([]interval{usable}, []interval{hole}, 4096<<(shift%6))
		if err != nil {
			return
		}
		whole := slices.Clone(a.free)
		live := map[IOVA]uint64{}
		var order []IOVA
		for _, op := range ops {
			if op >= 128 && len(order) > 0 {
				i := int(op) % len(order)
				n, err := a.release(order[i])
				require.NoError(t, err)
				require.Equal(t, live[order[i]], n)
				delete(live, order[i])
				order = slices.Delete(order, i, i+1)
				continue
			}
			n := (uint64(op)%128 + 1) * a.page * (1 + uint64(op)%3*100)
			at, err := a.alloc(n)
			if err != nil {
				continue
			}
			from, to := uint64(at), uint64(at)+n-1
			require.Zero(t, from%a.page)
			require.True(t, from <= to && from >= first && to <= last && from >= iovaLeast)
			require.False(t, holeFirst <= holeLast && from <= holeLast && to >= holeFirst, "in the hole")
			for o, m := range live {
				require.True(t, to < uint64(o) || from > uint64(o)+m-1, "overlap")
			}
			live[at] = n
			order = append(order, at)
		}
		for _, at := range order {
			_, err := a.release(at)
			require.NoError(t, err)
		}
		require.Equal(t, whole, a.free)
	})
}
