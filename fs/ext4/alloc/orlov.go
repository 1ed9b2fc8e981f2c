package alloc

import "math/rand/v2"

// Where inodes go, after Orlov's way: directories at the top of the tree are spread over the volume, those below stay
// near their parents while there is room, and files stay with their directory. The unit is the flex group, whose inode
// tables lie together.

// room is what a run of groups has free.
type room struct{ inodes, blocks, dirs uint64 }

func (a *Allocator) roomOf(from, to uint32) (r room) {
	for i := from; i < to; i++ {
		g := &a.groups[i]
		r.inodes += uint64(g.freeInodes.Load())
		r.blocks += uint64(g.avail.Load())
		r.dirs += uint64(g.dirs.Load())
	}
	return r
}

// flex is the groups [from, to) of the flex group of a group.
func (a *Allocator) flex(group uint32) (from, to uint32) {
	size := min(a.sb.FlexSize(), uint32(len(a.groups)))
	from = group / size * size
	return from, min(from+size, uint32(len(a.groups)))
}

// findFileGroup is the parent's group, or one of its flex group with inodes and blocks.
func (a *Allocator) findFileGroup(home uint32) uint32 {
	if a.usable(home) {
		return home
	}
	from, to := a.flex(home)
	for g := from; g < to; g++ {
		if a.usable(g) {
			return g
		}
	}
	count := uint32(len(a.groups))
	for k := uint32(1); k < count; k *= 2 {
		if g := (home + k) % count; a.usable(g) {
			return g
		}
	}
	return home
}

func (a *Allocator) usable(group uint32) bool {
	g := &a.groups[group]
	return g.freeInodes.Load() > 0 && g.avail.Load() > 0
}

// findDirGroup chooses a group for a new directory whose parent is in group home; top says that the parent is the root.
func (a *Allocator) findDirGroup(home uint32, top bool) uint32 {
	count := uint32(len(a.groups))
	size := min(a.sb.FlexSize(), count)
	flexes := (count + size - 1) / size
	inodes := a.FreeInodes() / uint64(flexes)
	blocks := uint64(max(a.avail.Load(), 0)) / uint64(flexes)
	dirs := a.Dirs() / uint64(flexes)
	start := home / size
	if top {
		start = rand.Uint32N(flexes)
		best, found := uint32(0), false
		fewest := ^uint64(0)
		for k := range flexes {
			f := (start + k) % flexes
			r := a.roomOf(a.flex(f * size))
			if r.inodes > 0 && r.inodes >= inodes && r.blocks >= blocks && r.dirs < fewest {
				best, found, fewest = f, true, r.dirs
			}
		}
		if found {
			return a.groupIn(best*size, true)
		}
	}
	// Not too many directories, and something left to grow.
	perFlex := uint64(a.sb.InodesPerGroup) * uint64(size)
	for k := range flexes {
		f := (start + k) % flexes
		r := a.roomOf(a.flex(f * size))
		if r.inodes > 0 && r.dirs < dirs+perFlex/16 && r.inodes+perFlex/4 >= inodes &&
			r.blocks+uint64(a.sb.BlocksPerGroup)*uint64(size)/4 >= blocks {
			if f == home/size && a.usable(home) {
				return home
			}
			return a.groupIn(f*size, false)
		}
	}
	return home
}

// groupIn is a group of the flex group that begins at from: the first with inodes and blocks.
func (a *Allocator) groupIn(from uint32, spread bool) uint32 {
	from, to := a.flex(from)
	start := uint32(0)
	if spread && to-from > 1 {
		start = rand.Uint32N(to - from)
	}
	for k := range to - from {
		if g := from + (start+k)%(to-from); a.usable(g) {
			return g
		}
	}
	return from
}
