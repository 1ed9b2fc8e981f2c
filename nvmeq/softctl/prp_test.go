package softctl

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// extent is a piece of expected data.
type extent struct{ at, n uint64 }

// layPRPs describes n bytes as pages drawn by r, with the first byte at an offset, a list that begins anywhere in its
// page, and chains. It gives PRP1, PRP2 and where the data then is. It is written from the specification, not from
// walkPRP.
func layPRPs(r *rand.Rand, mem []byte, base uint64, n, page int) (prp1, prp2 uint64, want []extent) {
	pages := len(mem) / page
	free := r.Perm(pages)
	if r.IntN(2) == 0 { // runs of pages that follow one another
		const run = 16
		free = free[:0]
		for _, first := range r.Perm(pages / run) {
			for i := range run {
				free = append(free, first*run+i)
			}
		}
	}
	take := func() int { p := free[0]; free = free[1:]; return p }
	off := r.IntN(page/4) * 4
	first := min(n, page-off)
	prp1 = base + uint64(take()*page+off)
	want = append(want, extent{prp1, uint64(first)})
	n -= first
	var entries []uint64
	for n > 0 {
		at := base + uint64(take()*page)
		entries = append(entries, at)
		want = append(want, extent{at, uint64(min(n, page))})
		n -= min(n, page)
	}
	switch len(entries) {
	case 0:
		return prp1, r.Uint64(), want // PRP2 means nothing
	case 1:
		return prp1, entries[0], want
	}
	list := take() * page
	slot := r.IntN(page / 8)
	if r.IntN(2) == 0 {
		slot = page/8 - 1 - r.IntN(3) // chains soon
	}
	prp2 = base + uint64(list+8*slot)
	for len(entries) > 0 {
		if slot == page/8-1 && len(entries) > 1 {
			next := take() * page
			binary.LittleEndian.PutUint64(mem[list+8*slot:], base+uint64(next))
			list, slot = next, 0
			continue
		}
		binary.LittleEndian.PutUint64(mem[list+8*slot:], entries[0])
		entries = entries[1:]
		slot++
	}
	return prp1, prp2, want
}

func TestWalkPRP(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	m := newMemory(t, 32<<20)
	for _, page := range []int{4096, 8192, 65536} {
		for i := range 300 {
			s := newAddressSpace(nil)
			a, err := s.add(m, 0, m.Size())
			require.NoError(t, err)
			n := (1 + r.IntN(16)) * 512
			if i%3 == 1 {
				n = (1 + r.IntN(2048)) * 512
			} else if i%3 == 2 {
				n = (1 + r.IntN(16384)) * 512 // 8 MiB: several list pages
			}
			prp1, prp2, want := layPRPs(r, m.b, uint64(a), n, page)
			var v vector
			require.Equal(t, success, s.walkPRP(&v, prp1, prp2, int64(n), int64(page)))
			require.Equal(t, int64(n), v.n)
			var got []extent
			for _, p := range v.pieces {
				got = append(got, extent{p.r.base + uint64(p.off), uint64(p.n)})
			}
			require.Equal(t, merged(want), got)
		}
	}
}

func merged(e []extent) (r []extent) {
	for _, x := range e {
		if k := len(r) - 1; k >= 0 && r[k].at+r[k].n == x.at {
			r[k].n += x.n
			continue
		}
		r = append(r, x)
	}
	return r
}

// TestWalkPRPBadEntries breaks one entry after another of a chained list.
func TestWalkPRPBadEntries(t *testing.T) {
	m := newMemory(t, 4<<20)
	s := newAddressSpace(nil)
	a, err := s.add(m, 0, m.Size())
	require.NoError(t, err)
	base := uint64(a)
	const lists = 2 << 20 // the list pages' offset
	lay := func() {
		for i := range 511 {
			binary.LittleEndian.PutUint64(m.b[lists+8*i:], base+4096)
		}
		binary.LittleEndian.PutUint64(m.b[lists+8*511:], base+lists+4096)
		for i := range 512 {
			binary.LittleEndian.PutUint64(m.b[lists+4096+8*i:], base+8192)
		}
	}
	walk := func(n int64) Status {
		var v vector
		return s.walkPRP(&v, base, base+lists, n, 4096)
	}
	for _, tc := range []struct {
		name  string
		entry int
		value uint64
		want  Status
	}{
		{"good", 600, base, success},
		{"first entry has an offset", 0, base + 512, invalidPRPOffset},
		{"entry unmapped", 100, 0, dataTransferError},
		{"chain has an offset", 511, base + lists + 8, invalidPRPOffset},
		{"chain unmapped", 511, 1 << 60, dataTransferError},
		{"entry after the chain has an offset", 512, base + 4, invalidPRPOffset},
		{"entry after the chain unmapped", 1000, base + 4<<20, dataTransferError},
		{"chain to itself", 511, base + lists, success}, // its last entry is then data: the transfer ends
	} {
		t.Run(tc.name, func(t *testing.T) {
			lay()
			binary.LittleEndian.PutUint64(m.b[lists+8*tc.entry:], tc.value)
			n := int64(1 + 511 + 512)
			require.Equal(t, tc.want, walk(n*4096))
		})
	}
	lay()
	require.Equal(t, success, walk(513*4096), "the last of 512 entries is data")
	for i := range 100 {
		binary.LittleEndian.PutUint64(m.b[lists+8*i:], base+uint64(4<<20+4096*(i-98)))
	}
	require.Equal(t, success, walk(99*4096), "a run that ends with the region")
	require.Equal(t, dataTransferError, walk(100*4096), "a run that goes on past it")
	lay()
	var v vector
	require.Equal(t, success, s.walkPRP(&v, base, base+lists+8*511, 3*4096, 4096), "a first list of one entry is a chain")
	require.Equal(t, int64(3*4096), v.n)
}

func FuzzWalkPRP(f *testing.F) {
	f.Add(uint64(0x10_0000_0000), uint64(0x10_0000_1000), uint32(40), []byte{})
	f.Add(uint64(0x10_0000_0ffc), uint64(0x10_0000_1ff8), uint32(4000), []byte{1, 2, 3})
	m := newMemory(f, 64<<10)
	f.Fuzz(func(t *testing.T, prp1, prp2 uint64, blocks uint32, list []byte) {
		s := newAddressSpace(nil)
		a, err := s.add(m, 0, m.Size())
		require.NoError(t, err)
		clear(m.b)
		for i := 0; i+8 <= len(m.b); i += 8 { // entries that are nearly right
			v := uint64(a) + uint64(i)%uint64(len(m.b))&^4095
			if len(list) > 0 {
				v += uint64(list[i/8%len(list)]) << (list[i/8%len(list)] % 13)
			}
			binary.LittleEndian.PutUint64(m.b[i:], v)
		}
		n := int64(blocks%65536+1) * 512
		var v vector
		st := s.walkPRP(&v, prp1, prp2, n, 4096)
		var sum int64
		for _, p := range v.pieces {
			require.LessOrEqual(t, p.off+p.n, int64(len(m.b)))
			sum += p.n
		}
		if st == success {
			require.Equal(t, n, sum)
		}
	})
}
