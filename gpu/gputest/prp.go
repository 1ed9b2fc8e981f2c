package gputest

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/kernels"
	"github.com/stretchr/testify/require"
)

// walkPRP reads PRPs as a controller does [NVMe 4.1.1], knowing nothing of how they were built: it returns the IOVA of
// every page of the data, the first with its offset. read loads a list entry.
func walkPRP(prp1, prp2, length, page uint64, read func(iova uint64) (uint64, error)) ([]uint64, error) {
	if length == 0 {
		return nil, nil
	}
	if prp1%4 != 0 {
		return nil, fmt.Errorf("PRP1 %#x is no dword's address", prp1)
	}
	pages := []uint64{prp1}
	first := page - prp1%page
	if length <= first {
		return pages, nil
	}
	length -= first
	if length <= page {
		if prp2%page != 0 {
			return nil, fmt.Errorf("PRP2 %#x is no page's address", prp2)
		}
		return append(pages, prp2), nil
	}
	if prp2%8 != 0 {
		return nil, fmt.Errorf("the list's address %#x is no qword's", prp2)
	}
	for list := prp2; ; {
		entry, err := read(list)
		if err != nil {
			return nil, err
		}
		if entry%page != 0 && !(list%page == page-8 && length > page && entry%8 == 0) {
			return nil, fmt.Errorf("entry %#x at %#x has an offset", entry, list)
		}
		if list%page == page-8 && length > page {
			list = entry // the last entry of a page, with more to come, is the next list's address
			continue
		}
		pages = append(pages, entry)
		if length <= page {
			return pages, nil
		}
		length -= page
		list += 8
	}
}

// PRPs builds PRPs with the kernel and checks them by walking.
type PRPs struct {
	d    *device
	mem  gpu.Memory
	size uint64 // of the list area
}

// NewPRPs opens a runtime for building PRPs with lists of up to half a megabyte.
func NewPRPs(t testing.TB, open Open) *PRPs {
	d := start(t, open)
	return &PRPs{d: d, mem: d.alloc(gpu.HostCoherent, 4096+1<<19), size: 1 << 19}
}

// Check builds the PRPs of one transfer with a list of listBytes that begins at listOffset of a page, and checks that a
// controller finds the data there, all of it, in order, and that nothing was written outside the list. It returns
// whether the kernel took the transfer.
func (p *PRPs) Check(t testing.TB, iova, length, page, listOffset, listBytes uint64) bool {
	t.Helper()
	const listIOVA = 0x5500_0000_0000
	out, list := p.mem.Host()[:24], p.mem.Host()[4096:]
	const untouched = 0xeeee_eeee_eeee_eee1 // no PRP: its low bits are set
	for i := range words64(list) {
		words64(list)[i] = untouched
	}
	d := *p.d
	d.t = t
	d.launch(kernels.PRPKernel, 1, 1, uint64(p.mem.Addr()), uint64(p.mem.Addr())+4096+listOffset, listIOVA+listOffset,
		listBytes, page, iova, length)
	prp1, prp2, ok := words64(out)[0], words64(out)[1], words64(out)[2]
	for i, w := range words64(list) {
		if at := uint64(i) * 8; w != untouched && (at < listOffset || at >= listOffset+listBytes) {
			t.Fatalf("%#x written outside the list, at %d", w, at)
		}
	}
	if ok == 0 {
		return false
	}
	pages, err := walkPRP(prp1, prp2, length, page, func(a uint64) (uint64, error) {
		if a < listIOVA+listOffset || a+8 > listIOVA+listOffset+listBytes {
			return 0, fmt.Errorf("the list leads out of its memory, to %#x", a)
		}
		return binary.LittleEndian.Uint64(list[a-listIOVA:]), nil
	})
	require.NoError(t, err)
	for i, a := range pages {
		want := iova
		if i > 0 {
			want = iova/page*page + uint64(i)*page
		}
		if a != want {
			t.Fatalf("page %d of %d bytes at %#x is %#x, not %#x", i, length, iova, a, want)
		}
	}
	if length > 0 {
		require.Equal(t, (iova%page+length+page-1)/page, uint64(len(pages)))
	}
	return true
}

func testPRP(t *testing.T, open Open) {
	p := NewPRPs(t, open)
	for _, page := range []uint64{4096, 65536} {
		perPage := page / 8
		for _, offset := range []uint64{0, 4, 512, page / 2, page - 512, page - 4} {
			for _, n := range []uint64{0, 4, 512, page - 512, page, page + 4, 2 * page, 2*page + 512, 3 * page, 1 << 20,
				perPage * page, (perPage + 1) * page, (perPage + 2) * page, 2 * perPage * page, (2*perPage - 1) * page, 3*perPage*page + 4} {
				for _, listOffset := range []uint64{0, page - 16, page - 8} {
					require.True(t, p.Check(t, 0x40000000+offset, n, page, listOffset, p.size-listOffset),
						"%d bytes at offset %d, pages of %d", n, offset, page)
				}
			}
		}
	}
	// A list of exactly PRPStride suffices at any offset; eight bytes less would not at the worst one.
	for _, n := range []int64{4096, 8192, 12288, 1 << 17, 1 << 20, 2 << 20, 2<<20 + 4096, 2<<20 + 8192, 5 << 20, 16 << 20} {
		for _, offset := range []uint64{0, 4, 512, 4092} {
			require.True(t, p.Check(t, 0x40000000+offset, uint64(n), 4096, 0, uint64(kernels.PRPStride(n, 4096))), "%d bytes at %d", n, offset)
		}
	}
	require.False(t, p.Check(t, 0x40000000, 3*4096, 4096, 0, 8), "a list of two in the space of one")
	require.True(t, p.Check(t, 0x40000000, 3*4096, 4096, 0, 16))
	require.False(t, p.Check(t, 0x40000000, 513*4096+4096, 4096, 0, 4096), "513 entries in a page")
	require.True(t, p.Check(t, 0x40000000, 512*4096+4096, 4096, 0, 4096), "512 entries in a page")
	for _, iova := range []uint64{1, 2, 3, 0x40000001, 0x40000fff} {
		require.False(t, p.Check(t, iova, 512, 4096, 0, 4096), "data at %#x", iova)
	}
	require.False(t, p.Check(t, ^uint64(0)-3, 8, 4096, 0, 4096), "data that wraps around")
}
