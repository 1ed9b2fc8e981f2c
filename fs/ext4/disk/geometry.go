package disk

import "math/bits"

// Limits of the format.
const (
	MaxLogBlockSize   = 6 // 64 KiB
	MaxLogClusterSize = 20
	MaxDescSize       = 1024
)

// check refuses a geometry that the rest of the code could not count with.
func (s *Superblock) check() error {
	bad := func(format string, args ...any) error { return Corrupt("superblock", format, args...) }
	if s.LogBlockSize > MaxLogBlockSize {
		return bad("log_block_size %d is beyond %d (64 KiB blocks)", s.LogBlockSize, MaxLogBlockSize)
	}
	bs := uint32(s.BlockSize())
	if s.Bigalloc() {
		if s.LogClusterSize < s.LogBlockSize || s.LogClusterSize > MaxLogClusterSize {
			return bad("log_cluster_size %d is not between log_block_size %d and %d", s.LogClusterSize, s.LogBlockSize,
				MaxLogClusterSize)
		}
		if uint64(s.ClustersPerGrp)<<s.ClusterBits() != uint64(s.BlocksPerGroup) {
			return bad("%d clusters of %d blocks a group do not make %d blocks", s.ClustersPerGrp, 1<<s.ClusterBits(),
				s.BlocksPerGroup)
		}
	}
	clusters := s.BlocksPerGroup >> s.ClusterBits()
	switch {
	case s.RevLevel > 1:
		return bad("revision %d is unknown", s.RevLevel)
	case s.InodeSize < InodeSizeRev0 || uint32(s.InodeSize) > bs || bits.OnesCount16(s.InodeSize) != 1:
		return bad("inode size %d is not a power of two from %d to the block size %d", s.InodeSize, InodeSizeRev0, bs)
	case s.FirstIno < FirstInoRev0:
		return bad("first inode %d is below %d", s.FirstIno, FirstInoRev0)
	case clusters == 0 || clusters > 8*bs || clusters%8 != 0:
		return bad("%d blocks a group do not fit its bitmap of %d bits", clusters, 8*bs)
	case s.InodesPerGroup == 0 || s.InodesPerGroup > 8*bs || s.InodesPerGroup < bs/uint32(s.InodeSize):
		return bad("%d inodes a group are not between one block of them (%d) and what a bitmap holds (%d)",
			s.InodesPerGroup, bs/uint32(s.InodeSize), 8*bs)
	case s.InodeTableBlocks() > s.BlocksPerGroup:
		return bad("an inode table of %d blocks does not fit a group of %d", s.InodeTableBlocks(), s.BlocksPerGroup)
	case s.BlocksCount <= uint64(s.FirstDataBlock):
		return bad("%d blocks, of which the first is %d", s.BlocksCount, s.FirstDataBlock)
	case bs == 1024 && s.FirstDataBlock == 0 && !s.Bigalloc():
		return bad("first_data_block is 0 with blocks of 1024 bytes")
	case bs > 1024 && s.FirstDataBlock != 0:
		return bad("first_data_block is %d with blocks of %d bytes", s.FirstDataBlock, bs)
	case s.BlocksCount > 1<<48:
		return bad("%d blocks are more than 2^48", s.BlocksCount)
	}
	if d := s.RawDescSize; s.FeatureIncompat.Has(Incompat64Bit) &&
		(d < GroupDescSize64 || d > MaxDescSize || bits.OnesCount16(d) != 1) {
		return bad("group descriptor size %d is not a power of two from %d to %d", d, GroupDescSize64, MaxDescSize)
	}
	groups := (s.BlocksCount - uint64(s.FirstDataBlock) + uint64(s.BlocksPerGroup) - 1) / uint64(s.BlocksPerGroup)
	switch {
	case groups*uint64(s.InodesPerGroup) != uint64(s.InodesCount):
		return bad("%d inodes, but %d groups of %d", s.InodesCount, groups, s.InodesPerGroup)
	case s.RBlocksCount > s.BlocksCount:
		return bad("%d blocks, %d of them reserved", s.BlocksCount, s.RBlocksCount)
	case s.LogGroupsPerFlex > 31:
		return bad("log_groups_per_flex is %d", s.LogGroupsPerFlex)
	case uint32(s.ReservedGDTBlocks) > bs/4:
		return bad("%d reserved descriptor blocks are more than a block can point to (%d)", s.ReservedGDTBlocks, bs/4)
	case s.FeatureIncompat.Has(IncompatMetaBG) && s.FirstMetaBG > s.DescBlocks():
		return bad("first_meta_bg %d is beyond the %d descriptor blocks", s.FirstMetaBG, s.DescBlocks())
	}
	return nil
}

// BlockSize is the size of a block in bytes.
func (s *Superblock) BlockSize() int { return 1024 << s.LogBlockSize }

// BlockBits is the logarithm of BlockSize.
func (s *Superblock) BlockBits() uint { return 10 + uint(s.LogBlockSize) }

// Bigalloc says whether space is allocated in clusters of several blocks.
func (s *Superblock) Bigalloc() bool { return s.FeatureROCompat.Has(ROCompatBigalloc) }

// ClusterBits is the logarithm of the blocks in a cluster, 0 without bigalloc.
func (s *Superblock) ClusterBits() uint {
	if !s.Bigalloc() {
		return 0
	}
	return uint(s.LogClusterSize) - uint(s.LogBlockSize)
}

// ClustersPerGroup is the number of bits that a block bitmap uses.
func (s *Superblock) ClustersPerGroup() uint32 { return s.BlocksPerGroup >> s.ClusterBits() }

// DescSize is the size of a group descriptor in force.
func (s *Superblock) DescSize() int {
	if s.FeatureIncompat.Has(Incompat64Bit) {
		return int(s.RawDescSize)
	}
	return GroupDescSize32
}

// Groups is the number of block groups.
func (s *Superblock) Groups() uint32 {
	n := s.BlocksCount - uint64(s.FirstDataBlock)
	return uint32((n + uint64(s.BlocksPerGroup) - 1) / uint64(s.BlocksPerGroup))
}

// GroupFirstBlock is the first block of a group.
func (s *Superblock) GroupFirstBlock(group uint32) uint64 {
	return uint64(group)*uint64(s.BlocksPerGroup) + uint64(s.FirstDataBlock)
}

// BlocksInGroup is the number of blocks in a group: BlocksPerGroup, but for the last one.
func (s *Superblock) BlocksInGroup(group uint32) uint32 {
	return uint32(min(uint64(s.BlocksPerGroup), s.BlocksCount-s.GroupFirstBlock(group)))
}

// GroupOfBlock is the group that a block lies in and its offset there.
func (s *Superblock) GroupOfBlock(block uint64) (group, offset uint32) {
	n := block - uint64(s.FirstDataBlock)
	return uint32(n / uint64(s.BlocksPerGroup)), uint32(n % uint64(s.BlocksPerGroup))
}

// ValidBlock says whether block can be named by a block pointer: inside the volume and behind the superblock's.
func (s *Superblock) ValidBlock(block uint64) bool {
	return block > uint64(s.FirstDataBlock) && block < s.BlocksCount
}

// ValidIno says whether ino is the number of an inode of this volume.
func (s *Superblock) ValidIno(ino uint32) bool { return ino > 0 && ino <= s.InodesCount }

// InodesPerBlock is the number of inode slots in a block.
func (s *Superblock) InodesPerBlock() uint32 { return uint32(s.BlockSize()) / uint32(s.InodeSize) }

// InodeTableBlocks is the size of a group's inode table in blocks.
func (s *Superblock) InodeTableBlocks() uint32 {
	per := s.InodesPerBlock()
	return (s.InodesPerGroup + per - 1) / per
}

// InodeLocation is the group of a valid inode, the block of that group's inode table it lies in, and the offset of its
// slot there in bytes.
func (s *Superblock) InodeLocation(ino uint32) (group, tableBlock uint32, offset int) {
	group, i := (ino-1)/s.InodesPerGroup, (ino-1)%s.InodesPerGroup
	per := s.InodesPerBlock()
	return group, i / per, int(i%per) * int(s.InodeSize)
}

// FlexSize is the number of groups in a flex group, 1 without flex_bg.
func (s *Superblock) FlexSize() uint32 {
	if !s.FeatureIncompat.Has(IncompatFlexBG) {
		return 1
	}
	return 1 << s.LogGroupsPerFlex
}
