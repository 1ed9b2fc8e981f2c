package disk

// This file says where superblock and descriptor copies lie ([layout] Layout: Sparse Super Blocks, Meta Block Groups).

// SuperBlockNo is the block that holds the primary superblock.
func (s *Superblock) SuperBlockNo() uint64 { return SuperblockOffset >> s.BlockBits() }

// DescsPerBlock is the number of group descriptors in a block.
func (s *Superblock) DescsPerBlock() uint32 { return uint32(s.BlockSize() / s.DescSize()) }

// DescBlocks is the number of blocks that hold all group descriptors.
func (s *Superblock) DescBlocks() uint32 {
	per := uint64(s.DescsPerBlock())
	return uint32((uint64(s.Groups()) + per - 1) / per)
}

// HasSuper says whether a group begins with a copy of the superblock.
func (s *Superblock) HasSuper(group uint32) bool {
	switch {
	case group == 0:
		return true
	case s.FeatureCompat.Has(CompatSparseSuper2):
		return group == s.BackupBGs[0] || group == s.BackupBGs[1]
	case group == 1 || !s.FeatureROCompat.Has(ROCompatSparseSuper):
		return true
	case group%2 == 0:
		return false
	}
	return powerOf(group, 3) || powerOf(group, 5) || powerOf(group, 7)
}

func powerOf(n, base uint32) bool {
	for n > 1 && n%base == 0 {
		n /= base
	}
	return n == 1
}

// BackupGroups lists the groups other than 0 that carry a copy of the superblock.
func (s *Superblock) BackupGroups() []uint32 {
	var out []uint32
	for g, n := uint32(1), s.Groups(); g < n; g++ {
		if s.HasSuper(g) {
			out = append(out, g)
		}
	}
	return out
}

// DescBlock is where the i-th block of group descriptors lies.
func (s *Superblock) DescBlock(i uint32) uint64 {
	if !s.FeatureIncompat.Has(IncompatMetaBG) || i < s.FirstMetaBG {
		return s.SuperBlockNo() + 1 + uint64(i)
	}
	g := i * s.DescsPerBlock()
	b := s.GroupFirstBlock(g)
	if s.HasSuper(g) {
		b++
	}
	if s.BlockSize() == 1024 && i == 0 && s.FirstDataBlock == 0 {
		b++ // bigalloc with 1 KiB blocks: group 0 starts with the boot block
	}
	return b
}

// DescLocation is the index of the descriptor block that describes group, and the offset of the descriptor in it.
func (s *Superblock) DescLocation(group uint32) (block uint32, offset int) {
	per := s.DescsPerBlock()
	return group / per, int(group%per) * s.DescSize()
}

// DescBlocksIn is the number of descriptor blocks, originals or copies, that lie in a group. Reserved ones are not
// counted.
func (s *Superblock) DescBlocksIn(group uint32) uint32 {
	per := s.DescsPerBlock()
	if s.FeatureIncompat.Has(IncompatMetaBG) && group/per >= s.FirstMetaBG {
		if i := group % per; i == 0 || i == 1 || i == per-1 {
			return 1
		}
		return 0
	}
	switch {
	case !s.HasSuper(group):
		return 0
	case s.FeatureIncompat.Has(IncompatMetaBG):
		return s.FirstMetaBG
	}
	return s.DescBlocks()
}

// BaseMetaBlocks is the number of blocks at the start of a group that superblock, descriptors and blocks reserved for
// descriptors take.
func (s *Superblock) BaseMetaBlocks(group uint32) uint32 {
	meta := s.FeatureIncompat.Has(IncompatMetaBG) && group/s.DescsPerBlock() >= s.FirstMetaBG
	n := s.DescBlocksIn(group)
	if s.HasSuper(group) {
		n++
		if !meta {
			n += uint32(s.ReservedGDTBlocks)
		}
	}
	return n
}
