package alloc

import (
	"fmt"
	"slices"
	"sort"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// zone is the blocks [start, end).
type zone struct{ start, end disk.Block }

// zones is sorted; neighbours that touch are one.
type zones []zone

func (z zones) size() (n uint64) {
	for _, x := range z {
		n += uint64(x.end - x.start)
	}
	return n
}

// touches says whether any of the n blocks from b lies in a zone.
func (z zones) touches(b disk.Block, n uint64) bool {
	i := sort.Search(len(z), func(i int) bool { return z[i].end > b })
	return i < len(z) && z[i].start < b+disk.Block(n)
}

// within calls f for the parts of zones that lie in [from, to).
func (z zones) within(from, to disk.Block, f func(zone)) {
	for i := sort.Search(len(z), func(i int) bool { return z[i].end > from }); i < len(z) && z[i].start < to; i++ {
		f(zone{max(z[i].start, from), min(z[i].end, to)})
	}
}

// makeZones sorts and joins. The error is of two zones that overlap; the zones are good all the same.
func makeZones(in []zone) (zones, error) {
	slices.SortFunc(in, func(a, b zone) int {
		switch {
		case a.start < b.start:
			return -1
		case a.start > b.start:
			return 1
		}
		return 0
	})
	var out zones
	var err error
	for _, x := range in {
		if k := len(out) - 1; k >= 0 && x.start <= out[k].end {
			if x.start < out[k].end && err == nil {
				err = fmt.Errorf("blocks %d to %d have two uses", x.start, min(x.end, out[k].end)-1)
			}
			out[k].end = max(out[k].end, x.end)
			continue
		}
		out = append(out, x)
	}
	return out, err
}

// findMeta collects the system zones.
func (a *Allocator) findMeta() error {
	sb := a.sb
	var all []zone
	add := func(b, n uint64) {
		if n > 0 {
			all = append(all, zone{disk.Block(b), disk.Block(b + n)})
		}
	}
	if sb.FirstDataBlock == 0 && sb.BlockSize() == 1024 {
		add(0, 1) // the boot block, which is in group 0 with bigalloc
	}
	table := uint64(sb.InodeTableBlocks())
	for i := range a.groups {
		g := &a.groups[i]
		first := sb.GroupFirstBlock(g.n)
		if g.n == 0 {
			first = sb.SuperBlockNo()
		}
		n := uint64(sb.BaseMetaBlocks(g.n))
		if n > uint64(sb.BlocksInGroup(g.n)) {
			return disk.Corrupt(g.name(), "superblock and descriptors take %d blocks of %d", n, sb.BlocksInGroup(g.n))
		}
		add(first, n)
		add(g.desc.BlockBitmap, 1)
		add(g.desc.InodeBitmap, 1)
		add(g.desc.InodeTable, table)
	}
	var err error
	if a.meta, err = makeZones(all); err != nil {
		a.damaged(disk.Corrupt("group descriptors", "%v", err))
	}
	return nil
}

// Protect adds blocks that no file but the caller's own may have: the journal's. It refuses what overlaps a zone.
func (a *Allocator) Protect(b disk.Block, n uint32) error {
	a.protectMu.Lock()
	defer a.protectMu.Unlock()
	all := []zone{{b, b + disk.Block(n)}}
	if p := a.protected.Load(); p != nil {
		all = append(all, *p...)
	}
	if !a.Valid(b, n) {
		return disk.Corrupt("journal", "blocks %d to %d have another use", b, uint64(b)+uint64(n)-1)
	}
	z, err := makeZones(all)
	if err != nil {
		return disk.Corrupt("journal", "%v", err)
	}
	a.protected.Store(&z)
	return nil
}

// Valid says whether the n blocks from b lie inside the volume and in no system or protected zone: whether a file may
// have them.
func (a *Allocator) Valid(b disk.Block, n uint32) bool {
	last := uint64(b) + uint64(n)
	if n == 0 || uint64(b) <= uint64(a.sb.FirstDataBlock) && a.sb.FirstDataBlock > 0 || b == 0 ||
		last < uint64(b) || last > a.sb.BlocksCount {
		return false
	}
	if a.meta.touches(b, uint64(n)) {
		return false
	}
	p := a.protected.Load()
	return p == nil || !p.touches(b, uint64(n))
}
