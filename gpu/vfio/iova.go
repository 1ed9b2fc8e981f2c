package vfio

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
)

// IOVA is an address as the function sees it: what it puts on the bus, and what the IOMMU translates.
type IOVA uint64

// interval is IOVAs from First to Last, both included: so that it can hold all of them.
type interval struct{ First, Last uint64 }

// allocator hands out IOVAs. It knows nothing of the kernel; its owner serialises calls.
//
// Usable is what the IOMMU translates, less what is reserved: message-signalled interrupts, and the BARs of all PCI
// functions, because a switch without ACS routes an address that looks like a peer's to the peer, and the IOMMU never sees
// it. An address is not handed out again before all others were, and between two mappings there is a gap: a stale
// address, or one past the end, misses.
type allocator struct {
	page uint64     // smallest unit, a power of two
	free []interval // ascending, apart, in whole pages
	used map[uint64]uint64
	next uint64 // where the search begins
}

const (
	iovaFirst = 1 << 32 // the search begins here where possible: 32-bit addresses are full of holes and of others' uses
	iovaLeast = 1 << 20 // never below: address 0 and its neighbours are what bugs look like
)

// newAllocator takes the usable ranges, the ranges to leave out, and the page sizes of the IOMMU as a bit mask.
func newAllocator(usable, reserved []interval, pageSizes uint64) (*allocator, error) {
	a := &allocator{page: 4096, used: map[uint64]uint64{}, next: iovaFirst}
	if pageSizes != 0 {
		a.page = max(a.page, 1<<bits.TrailingZeros64(pageSizes))
	}
	if a.page > 64<<10 {
		return nil, fmt.Errorf("the IOMMU's smallest page is %d bytes; up to 65536 are supported", a.page)
	}
	free := slices.Clone(usable)
	for _, r := range append([]interval{{0, iovaLeast - 1}}, reserved...) {
		free = subtract(free, r)
	}
	for _, r := range free {
		first, last := r.First, r.Last
		if rest := first % a.page; rest != 0 {
			if first += a.page - rest; first < r.First {
				continue // past the end of all addresses
			}
		}
		if last -= (last + 1) % a.page; last > r.Last || last < first {
			continue // less than a page
		}
		a.free = append(a.free, interval{first, last})
	}
	slices.SortFunc(a.free, func(x, y interval) int { return cmp.Compare(x.First, y.First) })
	for i := 1; i < len(a.free); i++ {
		if a.free[i].First <= a.free[i-1].Last {
			return nil, fmt.Errorf("the kernel names overlapping IOVA ranges: %#x-%#x and %#x-%#x",
				a.free[i-1].First, a.free[i-1].Last, a.free[i].First, a.free[i].Last)
		}
	}
	if len(a.free) == 0 {
		return nil, fmt.Errorf("no usable IOVAs: the kernel offers %d ranges, %d are reserved", len(usable), len(reserved))
	}
	return a, nil
}

// subtract takes r out of ranges.
func subtract(ranges []interval, r interval) []interval {
	var out []interval
	for _, f := range ranges {
		if f.First > f.Last || r.First > r.Last || r.Last < f.First || r.First > f.Last {
			if f.First <= f.Last {
				out = append(out, f)
			}
			continue
		}
		if r.First > f.First {
			out = append(out, interval{f.First, r.First - 1})
		}
		if r.Last < f.Last {
			out = append(out, interval{r.Last + 1, f.Last})
		}
	}
	return out
}

// alloc gives n bytes of IOVA, aligned to a page, and to 2 MiB when there are so many, so that the IOMMU can use large
// pages.
func (a *allocator) alloc(n uint64) (IOVA, error) {
	if n == 0 || n%a.page != 0 {
		return 0, fmt.Errorf("%d bytes of IOVA: want a multiple of the IOMMU's page of %d", n, a.page)
	}
	align := a.page
	if n >= 2<<20 {
		align = 2 << 20
	}
	for _, from := range []uint64{a.next, 0} {
		for i, r := range a.free {
			at, ok := place(r, from, n, align)
			if !ok {
				continue
			}
			left := subtract([]interval{r}, interval{at, at + n - 1})
			a.free = slices.Replace(a.free, i, i+1, left...)
			a.used[at] = n
			a.next = at + n + a.page // the gap; free as any other once the search comes round
			return IOVA(at), nil
		}
	}
	return 0, fmt.Errorf("no room for %d bytes of IOVA: %d mappings are in use", n, len(a.used))
}

// place finds n aligned bytes in r at from or above.
func place(r interval, from, n, align uint64) (uint64, bool) {
	at := max(r.First, from)
	if rest := at % align; rest != 0 {
		if at > ^uint64(0)-(align-rest) {
			return 0, false
		}
		at += align - rest
	}
	return at, at <= r.Last && r.Last-at >= n-1
}

// size says how much alloc gave at an address.
func (a *allocator) size(at IOVA) (uint64, error) {
	n, ok := a.used[uint64(at)]
	if !ok {
		return 0, fmt.Errorf("unmap IOVA %#x: no mapping begins there", uint64(at))
	}
	return n, nil
}

// release takes back what alloc gave and says how much it was.
func (a *allocator) release(at IOVA) (uint64, error) {
	n, err := a.size(at)
	if err != nil {
		return 0, err
	}
	delete(a.used, uint64(at))
	r := interval{uint64(at), uint64(at) + n - 1}
	i, _ := slices.BinarySearchFunc(a.free, r, func(x, y interval) int { return cmp.Compare(x.First, y.First) })
	a.free = slices.Insert(a.free, i, r)
	if i+1 < len(a.free) && a.free[i].Last+1 == a.free[i+1].First {
		a.free[i].Last = a.free[i+1].Last
		a.free = slices.Delete(a.free, i+1, i+2)
	}
	if i > 0 && a.free[i-1].Last+1 == a.free[i].First {
		a.free[i-1].Last = a.free[i].Last
		a.free = slices.Delete(a.free, i, i+1)
	}
	return n, nil
}
