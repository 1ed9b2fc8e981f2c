package volume

import (
	"math"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
)

// This file says how large a file can be. Two things bound it: the logical blocks that its tree can name, and what
// i_blocks can count ([layout] Index Nodes, i_blocks): 2^32 sectors of 512 bytes, or 2^48 blocks with huge_file.

// maxSectors is the most sectors that i_blocks can say, without FlHugeFile, which counts blocks.
func (v *FS) maxSectors() uint64 {
	if v.Super.FeatureROCompat.Has(disk.ROCompatHugeFile) {
		return 1<<48 - 1
	}
	return math.MaxUint32
}

// MaxSizeExtents is the size of the largest file with extents.
func (v *FS) MaxSizeExtents() int64 {
	n := int64(extent.MaxBlock) << v.BlockBits
	if !v.Super.FeatureROCompat.Has(disk.ROCompatHugeFile) {
		n = min(n, int64(math.MaxUint32>>(v.BlockBits-9))<<v.BlockBits)
	}
	return min(n, math.MaxInt64)
}

// maxSizeMap is the size of the largest file with a block map. The kernel keeps it so small that i_blocks can count a
// file without holes, the blocks of the map itself included, and so do we.
func (v *FS) maxSizeMap() int64 {
	per := uint64(v.BlockSize / 4)
	most := v.maxSectors() // of the file, in its blocks
	if !v.Super.FeatureROCompat.Has(disk.ROCompatHugeFile) {
		most >>= v.BlockBits - 9
	}
	direct := uint64(disk.InodeBlockSize/4 - 3)
	n := direct + per + per*per + per*per*per
	if n+mapNodes(n, per) > most {
		n = most - mapNodes(most, per) // what the map of a file of that many blocks would need
	}
	return int64(min(n<<v.BlockBits, uint64(v.MaxSizeExtents())))
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

// Logical is the logical block that holds byte off, extent.MaxBlock for what no file can have.
func (v *FS) Logical(off int64) uint32 { return uint32(min(off>>v.BlockBits, extent.MaxBlock)) }

// LogicalEnd is how many blocks the first off bytes take, extent.MaxBlock at most.
func (v *FS) LogicalEnd(off int64) uint32 {
	if off <= 0 {
		return 0
	}
	return uint32(min((off-1)>>v.BlockBits+1, extent.MaxBlock))
}

// ReadEnd is where reading ends: the size, or where the largest file does if the volume says that this one is larger still. The
// kernel reads no further, either. Mu is held.
func (i *Inode) ReadEnd() int64 { return min(int64(i.Disk.Size), i.FS.MaxSizeExtents()) }

// MaxSize is the size that this file can have. Mu is held.
func (i *Inode) MaxSize() int64 {
	if i.ExtentMapped() {
		return i.FS.MaxSizeExtents()
	}
	return i.FS.maxSizeMap()
}

// ExtentMapped says whether the file has extents, or will have when it outgrows its inode.
func (i *Inode) ExtentMapped() bool {
	return i.Disk.Flags&disk.FlExtents != 0 || i.IsInline() && i.FS.Super.FeatureIncompat.Has(disk.IncompatExtents)
}

// noteLargeFile sets large_file, which says that there are files of 2 GiB and more.
func (v *FS) noteLargeFile(o *Op) {
	if v.largeFile.Swap(true) {
		return
	}
	v.updateSuper(o.Handle, func(sb *disk.Superblock) { sb.FeatureROCompat |= disk.ROCompatLargeFile })
}
