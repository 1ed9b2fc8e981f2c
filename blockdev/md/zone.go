package md

import (
	"fmt"
	"slices"
	"sort"

	"github.com/lanefs/lanefs/blockdev"
)

// The layouts of a raid0 whose members have different sizes: which member the first chunk of a second or later zone is on. Linux before 3.14
// numbered chunks from the beginning of the array (original), later ones from the beginning of the zone (alternate). md(4) has the story.
const (
	layoutOriginal  = 1
	layoutAlternate = 2
)

// zone is a part of an array that is striped over some of its members. Chunk k of it is on members[k % len(members)].
type zone struct {
	start, end blockdev.Bytes // of the array
	first      blockdev.Bytes // where it begins on each of its members, from the beginning of the array's data there
	depth      blockdev.Bytes // how much of each member it has
	chunk      blockdev.Bytes
	members    []int // roles
}

// zones cuts an array into zones.
func (all set) zones() ([]zone, error) {
	s := all[0].super
	chunk := blockdev.Bytes(s.Chunk) * sector
	sizes := make([]blockdev.Bytes, len(all))
	for i, m := range all {
		sizes[i] = blockdev.Bytes(m.super.DataSize) * sector
		if chunk > 0 {
			sizes[i] -= sizes[i] % chunk
		}
	}
	if s.Level == levelLinear {
		return linearZones(sizes), nil
	}
	list := truncate(stripedZones(sizes, chunk), sizes, s.Chunk)
	if len(list) < 2 || len(list[1].members) == 1 {
		return list, nil
	}
	switch {
	case s.Features&featureRAID0Layout != 0 && s.Layout == layoutAlternate:
	case s.Features&featureRAID0Layout != 0 && s.Layout == layoutOriginal:
		for i, z := range list {
			n := int(z.start / chunk % blockdev.Bytes(len(z.members)))
			list[i].members = append(slices.Clone(z.members[n:]), z.members[:n]...)
		}
	default:
		return nil, fmt.Errorf("%s has members of different sizes, and does not say in which of its two layouts (layout %d): mdadm --assemble "+
			"--update=layout-original writes that down for one made before Linux 3.14, --update=layout-alternate for a later one", s.Array(), s.Layout)
	}
	return list, nil
}

func linearZones(sizes []blockdev.Bytes) (list []zone) {
	var at blockdev.Bytes
	for i, n := range sizes {
		if n > 0 {
			list = append(list, zone{start: at, end: at + n, depth: n, chunk: n, members: []int{i}})
			at += n
		}
	}
	return list
}

// stripedZones stripes over all members up to the end of the smallest, then over those that are left.
func stripedZones(sizes []blockdev.Bytes, chunk blockdev.Bytes) (list []zone) {
	var at, first blockdev.Bytes
	for {
		var z zone
		var least blockdev.Bytes
		for i, n := range sizes {
			if n > first {
				if z.members = append(z.members, i); least == 0 || n < least {
					least = n
				}
			}
		}
		if len(z.members) == 0 {
			return list
		}
		z.start, z.first, z.depth, z.chunk = at, first, least-first, chunk
		at += (least - first) * blockdev.Bytes(len(z.members))
		z.end, first = at, least
		list = append(list, z)
	}
}

// truncate leaves what Linux gives of an array: of each member the sectors without those bits that are set in the chunk's sectors less one.
// That is all of them where chunks are powers of two; else some chunks at the end are not used.
func truncate(list []zone, sizes []blockdev.Bytes, chunk uint32) []zone {
	var size blockdev.Bytes
	for _, n := range sizes {
		size += n / sector &^ blockdev.Bytes(chunk-1) * sector
	}
	for i := range list {
		if list[i].end = min(list[i].end, size); list[i].start >= list[i].end {
			return list[:i]
		}
	}
	return list
}

// find is the zone of an offset of the array, which is in one.
func find(list []zone, off blockdev.Bytes) *zone {
	return &list[sort.Search(len(list), func(i int) bool { return off < list[i].end })]
}

// locate says on which member the byte at off of the array is, where in the array's data there, and how many bytes follow it there.
func (z *zone) locate(off blockdev.Bytes) (member int, at, left blockdev.Bytes) {
	k, in := (off-z.start)/z.chunk, (off-z.start)%z.chunk
	n := blockdev.Bytes(len(z.members))
	return z.members[k%n], z.first + k/n*z.chunk + in, z.chunk - in
}

// before is how many of the bytes of the zone that are before off are on the member in a column. So a range of the array has one range of each
// member, from before of its beginning to before of its end.
func (z *zone) before(off blockdev.Bytes, column int) blockdev.Bytes {
	row := z.chunk * blockdev.Bytes(len(z.members))
	n := off - z.start
	return n/row*z.chunk + min(max(n%row-z.chunk*blockdev.Bytes(column), 0), z.chunk)
}

// back is the offset in the array of a byte at `at` of a member's data, and how many bytes follow it in its chunk.
func back(list []zone, member int, at blockdev.Bytes) (off, left blockdev.Bytes) {
	for i := range list {
		z := &list[i]
		column := slices.Index(z.members, member)
		n := blockdev.Bytes(len(z.members))
		if column < 0 || at < z.first || at >= z.first+z.depth {
			continue
		}
		k, in := (at-z.first)/z.chunk, (at-z.first)%z.chunk
		return z.start + (k*n+blockdev.Bytes(column))*z.chunk + in, z.chunk - in
	}
	return 0, 0
}
