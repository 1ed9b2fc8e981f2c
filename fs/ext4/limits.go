package ext4

import (
	"math"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
)

// This file says how large a file can be. Two things bound it: the logical blocks that its tree can name, and what
// i_blocks can count ([layout] Index Nodes, i_blocks): 2^32 sectors of 512 bytes, or 2^48 blocks with huge_file.

// maxSectors is the most sectors that i_blocks can say, without FlHugeFile, which counts blocks.
func (v *FS) maxSectors() uint64 {
	if v.sb.FeatureROCompat.Has(disk.ROCompatHugeFile) {
		return 1<<48 - 1
	}
	return math.MaxUint32
}

// maxSizeExtents is the size of the largest file with extents.
func (v *FS) maxSizeExtents() int64 {
	n := int64(extent.MaxBlock) << v.bits
	if !v.sb.FeatureROCompat.Has(disk.ROCompatHugeFile) {
		n = min(n, int64(math.MaxUint32>>(v.bits-9))<<v.bits)
	}
	return min(n, math.MaxInt64)
}

// maxSizeMap is the size of the largest file with a block map. The kernel keeps it so small that i_blocks can count a
// file without holes, the blocks of the map itself included, and so do we.
func (v *FS) maxSizeMap() int64 {
	per := uint64(v.bs / 4)
	most := v.maxSectors() // of the file, in its blocks
	if !v.sb.FeatureROCompat.Has(disk.ROCompatHugeFile) {
		most >>= v.bits - 9
	}
	direct := uint64(disk.InodeBlockSize/4 - 3)
	n := direct + per + per*per + per*per*per
	if n+mapNodes(n, per) > most {
		n = most - mapNodes(most, per) // what the map of a file of that many blocks would need
	}
	return int64(min(n<<v.bits, uint64(v.maxSizeExtents())))
}

// mapNodes is how many nodes the block map of n blocks without a hole has.
func mapNodes(n, per uint64) uint64 {
	direct := uint64(disk.InodeBlockSize/4 - 3)
	if n <= direct {
		return 0
	}
	n -= direct
	nodes := uint64(1)
	if n <= per {
		return nodes
	}
	n -= per
	nodes++
	if n <= per*per {
		return nodes + (n+per-1)/per
	}
	nodes += per
	n -= per * per
	return nodes + 1 + (n+per-1)/per + (n+per*per-1)/(per*per)
}

// logical is the logical block that holds byte off, extent.MaxBlock for what no file can have.
func (v *FS) logical(off int64) uint32 { return uint32(min(off>>v.bits, extent.MaxBlock)) }

// logicalEnd is how many blocks the first off bytes take, extent.MaxBlock at most.
func (v *FS) logicalEnd(off int64) uint32 {
	if off <= 0 {
		return 0
	}
	return uint32(min((off-1)>>v.bits+1, extent.MaxBlock))
}

// end is where reading ends: the size, or where the largest file does if the volume says that this one is larger still. The
// kernel reads no further, either. mu is held.
func (i *Inode) end() int64 { return min(int64(i.d.Size), i.fs.maxSizeExtents()) }

// maxSize is the size that this file can have. mu is held.
func (i *Inode) maxSize() int64 {
	if i.extentMapped() {
		return i.fs.maxSizeExtents()
	}
	return i.fs.maxSizeMap()
}

// extentMapped says whether the file has extents, or will have when it outgrows its inode.
func (i *Inode) extentMapped() bool {
	return i.d.Flags&disk.FlExtents != 0 || i.inline() && i.fs.sb.FeatureIncompat.Has(disk.IncompatExtents)
}

// noteLargeFile sets large_file, which says that there are files of 2 GiB and more.
func (v *FS) noteLargeFile(o *op) {
	if v.largeFile.Swap(true) {
		return
	}
	v.updateSuper(o.h, func(sb *disk.Superblock) { sb.FeatureROCompat |= disk.ROCompatLargeFile })
}
