package vfio

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// chain builds an info buffer with capabilities at the offsets given.
type testCap struct {
	id    uint16
	next  uint32
	n     uint32
	pairs [][2]uint64
}

func chain(size int, caps map[int]testCap) []byte {
	b := alignedBytes(size)
	for at, c := range caps {
		binary.NativeEndian.PutUint16(b[at:], c.id)
		binary.NativeEndian.PutUint32(b[at+4:], c.next)
		binary.NativeEndian.PutUint32(b[at+8:], c.n)
		for i, p := range c.pairs {
			binary.NativeEndian.PutUint64(b[at+16+16*i:], p[0])
			binary.NativeEndian.PutUint64(b[at+24+16*i:], p[1])
		}
	}
	return b
}

func TestPairs(t *testing.T) {
	b := chain(128, map[int]testCap{32: {id: 3, next: 64}, 64: {id: 1, n: 2, pairs: [][2]uint64{{0, 1}, {2, 3}}}})
	got, err := pairs(b, 32, 1)
	require.NoError(t, err)
	require.Equal(t, [][2]uint64{{0, 1}, {2, 3}}, got)
	// As Debian 12's kernel, 6.1, lays them out.
	got, err = pairs(chain(128, map[int]testCap{24: {id: 3, next: 68}, 68: {id: 1, n: 2, pairs: [][2]uint64{{0, 1}, {2, 3}}}}), 24, 1)
	require.NoError(t, err)
	require.Equal(t, [][2]uint64{{0, 1}, {2, 3}}, got)
	got, err = pairs(b, 0, 1)
	require.NoError(t, err)
	require.Nil(t, got)
	got, err = pairs(b, 32, 9)
	require.NoError(t, err)
	require.Nil(t, got)

	for name, b := range map[string][]byte{
		"loop":     chain(64, map[int]testCap{32: {id: 3, next: 32}}),
		"past end": chain(64, map[int]testCap{32: {id: 3, next: 4096}}),
		"too many": chain(64, map[int]testCap{32: {id: 1, n: 2}}),
		"cut off":  chain(40, map[int]testCap{})[:40],
	} {
		at := uint32(32)
		if name == "cut off" {
			binary.NativeEndian.PutUint16(b[32:], 1)
		}
		_, err := pairs(b, at, 1)
		require.Error(t, err, name)
	}
}

func FuzzPairs(f *testing.F) {
	f.Add(chain(128, map[int]testCap{32: {id: 3, next: 64}, 64: {id: 1, n: 2}}), uint32(32))
	f.Fuzz(func(t *testing.T, raw []byte, offset uint32) {
		b := alignedBytes(len(raw))[:len(raw)]
		copy(b, raw)
		_, _ = pairs(b, offset, 1)
	})
}

func TestWithCaps(t *testing.T) {
	calls := 0
	b, err := withCaps(16, func(b []byte) (uint32, error) { calls++; return 100, nil })
	require.NoError(t, err)
	require.Len(t, b[:100], 100)
	require.Equal(t, 2, calls)
	n := uint32(16)
	_, err = withCaps(16, func(b []byte) (uint32, error) { n += 8; return n, nil })
	require.ErrorContains(t, err, "grows faster")
	_, err = withCaps(16, func(b []byte) (uint32, error) { return 1 << 31, nil })
	require.ErrorContains(t, err, "would have 2147483648 bytes")
}

func TestMappable(t *testing.T) {
	for _, c := range []struct {
		name   string
		size   uint64
		mmap   bool
		sparse [][2]uint64
		want   []interval
		err    string
	}{
		{"all of it", 0x4000, true, nil, []interval{{0, 0x3fff}}, ""},
		{"around the MSI-X table", 0x4000, true, [][2]uint64{{0, 0x2000}, {0x3000, 0x1000}}, []interval{{0, 0x1fff}, {0x3000, 0x3fff}}, ""},
		{"nothing of it", 0x4000, true, [][2]uint64{}, nil, ""},
		{"an empty area", 0x4000, true, [][2]uint64{{0, 0}}, nil, ""},
		{"no BAR", 0, true, nil, nil, "no such BAR"},
		{"no mmap", 0x4000, false, nil, nil, "does not let us map"},
		{"tiny", 256, true, nil, nil, "256 bytes"},
		{"smaller than a page", 0x1000, true, nil, []interval{{0, 0xfff}}, ""},
		{"in a page with others", 0x1000, false, nil, nil, "pci=resource_alignment=14@"},
		{"one page and a part", 0x5000, true, nil, nil, "20480 bytes"},
		{"past the end", 0x4000, true, [][2]uint64{{0x3000, 0x2000}}, nil, "cannot be"},
		{"ragged", 0x4000, true, [][2]uint64{{0x800, 0x1000}}, nil, "cannot be"},
		{"wraps", 0x4000, true, [][2]uint64{{0x1000, ^uint64(0xfff)}}, nil, "cannot be"},
	} {
		t.Run(c.name, func(t *testing.T) {
			page := uint64(4096)
			if c.size%0x4000 != 0 {
				page = 0x4000
			}
			got, err := mappable(c.size, c.mmap, c.sparse, page)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}
