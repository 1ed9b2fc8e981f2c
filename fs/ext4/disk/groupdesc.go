package disk

import "fmt"

// Sizes of a group descriptor: without and with the 64bit feature. Larger ones end in bytes without meaning.
const (
	GroupDescSize32 = 32
	GroupDescSize64 = 64
)

// Flags of a group (bg_flags).
const (
	BGInodeUninit = 0x1 // inode bitmap and table were never written
	BGBlockUninit = 0x2 // the block bitmap was never written
	BGInodeZeroed = 0x4 // the inode table was zeroed
)

// GroupDesc is struct ext4_group_desc ([layout] Block Group Descriptors).
type GroupDesc struct {
	BlockBitmap     uint64
	InodeBitmap     uint64
	InodeTable      uint64
	FreeBlocksCount uint32 // clusters with bigalloc
	FreeInodesCount uint32
	UsedDirsCount   uint32
	Flags           uint16
	ExcludeBitmap   uint64
	BlockBitmapCsum uint32 // only 16 bits count in a 32-byte descriptor
	InodeBitmapCsum uint32
	ItableUnused    uint32 // inodes at the table's end that were never used
	Checksum        uint16
}

// Decode reads a descriptor of len(b) bytes, which is Superblock.DescSize.
func (d *GroupDesc) Decode(b []byte) {
	_ = b[GroupDescSize32-1]
	*d = GroupDesc{
		BlockBitmap:     uint64(le.Uint32(b[0x00:])),
		InodeBitmap:     uint64(le.Uint32(b[0x04:])),
		InodeTable:      uint64(le.Uint32(b[0x08:])),
		FreeBlocksCount: uint32(le.Uint16(b[0x0C:])),
		FreeInodesCount: uint32(le.Uint16(b[0x0E:])),
		UsedDirsCount:   uint32(le.Uint16(b[0x10:])),
		Flags:           le.Uint16(b[0x12:]),
		ExcludeBitmap:   uint64(le.Uint32(b[0x14:])),
		BlockBitmapCsum: uint32(le.Uint16(b[0x18:])),
		InodeBitmapCsum: uint32(le.Uint16(b[0x1A:])),
		ItableUnused:    uint32(le.Uint16(b[0x1C:])),
		Checksum:        le.Uint16(b[0x1E:]),
	}
	if len(b) < GroupDescSize64 {
		return
	}
	d.BlockBitmap |= uint64(le.Uint32(b[0x20:])) << 32
	d.InodeBitmap |= uint64(le.Uint32(b[0x24:])) << 32
	d.InodeTable |= uint64(le.Uint32(b[0x28:])) << 32
	d.FreeBlocksCount |= uint32(le.Uint16(b[0x2C:])) << 16
	d.FreeInodesCount |= uint32(le.Uint16(b[0x2E:])) << 16
	d.UsedDirsCount |= uint32(le.Uint16(b[0x30:])) << 16
	d.ItableUnused |= uint32(le.Uint16(b[0x32:])) << 16
	d.ExcludeBitmap |= uint64(le.Uint32(b[0x34:])) << 32
	d.BlockBitmapCsum |= uint32(le.Uint16(b[0x38:])) << 16
	d.InodeBitmapCsum |= uint32(le.Uint16(b[0x3A:])) << 16
}

// Encode writes the descriptor into the len(b) bytes of its place, Checksum as it stands: SetChecksum comes after.
func (d *GroupDesc) Encode(b []byte) {
	_ = b[GroupDescSize32-1]
	le.PutUint32(b[0x00:], uint32(d.BlockBitmap))
	le.PutUint32(b[0x04:], uint32(d.InodeBitmap))
	le.PutUint32(b[0x08:], uint32(d.InodeTable))
	le.PutUint16(b[0x0C:], uint16(d.FreeBlocksCount))
	le.PutUint16(b[0x0E:], uint16(d.FreeInodesCount))
	le.PutUint16(b[0x10:], uint16(d.UsedDirsCount))
	le.PutUint16(b[0x12:], d.Flags)
	le.PutUint32(b[0x14:], uint32(d.ExcludeBitmap))
	le.PutUint16(b[0x18:], uint16(d.BlockBitmapCsum))
	le.PutUint16(b[0x1A:], uint16(d.InodeBitmapCsum))
	le.PutUint16(b[0x1C:], uint16(d.ItableUnused))
	le.PutUint16(b[0x1E:], d.Checksum)
	if len(b) < GroupDescSize64 {
		return
	}
	le.PutUint32(b[0x20:], uint32(d.BlockBitmap>>32))
	le.PutUint32(b[0x24:], uint32(d.InodeBitmap>>32))
	le.PutUint32(b[0x28:], uint32(d.InodeTable>>32))
	le.PutUint16(b[0x2C:], uint16(d.FreeBlocksCount>>16))
	le.PutUint16(b[0x2E:], uint16(d.FreeInodesCount>>16))
	le.PutUint16(b[0x30:], uint16(d.UsedDirsCount>>16))
	le.PutUint16(b[0x32:], uint16(d.ItableUnused>>16))
	le.PutUint32(b[0x34:], uint32(d.ExcludeBitmap>>32))
	le.PutUint16(b[0x38:], uint16(d.BlockBitmapCsum>>16))
	le.PutUint16(b[0x3A:], uint16(d.InodeBitmapCsum>>16))
}

// groupCsum computes the checksum of the descriptor in b: crc32c with metadata_csum, crc16 with uninit_bg, else 0 and
// false.
func (s *Superblock) groupCsum(group uint32, b []byte) (uint16, bool) {
	switch {
	case s.MetadataCsum():
		c := CRC32C32(s.CsumSeed(), group)
		c = CRC32C(c, b[:0x1E])
		c = crc32cZeros(c, 2)
		return uint16(CRC32C(c, b[0x20:])), true
	case s.FeatureROCompat.Has(ROCompatGDTCsum):
		c := CRC16(^uint16(0), s.UUID[:])
		c = CRC16(c, le.AppendUint32(nil, group))
		c = CRC16(c, b[:0x1E])
		return CRC16(c, b[0x20:]), true
	}
	return 0, false
}

// HasGroupCsum says whether group descriptors carry checksums, and with them whether groups can be uninitialised.
func (s *Superblock) HasGroupCsum() bool {
	return s.MetadataCsum() || s.FeatureROCompat.Has(ROCompatGDTCsum)
}

// ReadGroup decodes the descriptor of a group from its DescSize bytes b, and checks no more than that the inode table
// lies inside the volume: enough to look for files.
func (s *Superblock) ReadGroup(group uint32, b []byte) (GroupDesc, error) {
	var d GroupDesc
	d.Decode(b[:s.DescSize()])
	return d, s.groupWithin(group, "inode table", d.InodeTable, uint64(s.InodeTableBlocks()))
}

// DecodeGroup decodes the descriptor of a group from its DescSize bytes b, checks its checksum, that what it points to
// lies inside the volume, and that its counters can be: what it takes to change the group.
func (s *Superblock) DecodeGroup(group uint32, b []byte) (GroupDesc, error) {
	d, err := s.ReadGroup(group, b)
	if want, has := s.groupCsum(group, b[:s.DescSize()]); has && want != d.Checksum {
		return d, Corrupt(fmt.Sprintf("group descriptor %d", group), "checksum is %#04x, should be %#04x", d.Checksum, want)
	}
	if err != nil {
		return d, err
	}
	return d, s.checkGroup(group, &d)
}

// EncodeGroup encodes the descriptor of a group into its DescSize bytes b, checksum included. It updates d.Checksum.
func (s *Superblock) EncodeGroup(group uint32, d *GroupDesc, b []byte) {
	b = b[:s.DescSize()]
	d.Encode(b)
	if c, has := s.groupCsum(group, b); has {
		d.Checksum = c
		le.PutUint16(b[0x1E:], c)
	}
}

func (s *Superblock) checkGroup(group uint32, d *GroupDesc) error {
	bad := func(format string, args ...any) error {
		return Corrupt(fmt.Sprintf("group descriptor %d", group), format, args...)
	}
	if err := s.groupWithin(group, "block bitmap", d.BlockBitmap, 1); err != nil {
		return err
	}
	if err := s.groupWithin(group, "inode bitmap", d.InodeBitmap, 1); err != nil {
		return err
	}
	switch {
	case d.FreeBlocksCount > s.ClustersPerGroup():
		return bad("%d free blocks of %d", d.FreeBlocksCount, s.ClustersPerGroup())
	case d.FreeInodesCount > s.InodesPerGroup:
		return bad("%d free inodes of %d", d.FreeInodesCount, s.InodesPerGroup)
	case d.ItableUnused > s.InodesPerGroup:
		return bad("%d unused inodes of %d", d.ItableUnused, s.InodesPerGroup)
	}
	return nil
}

// groupWithin checks that the n blocks from b can be a group's own.
func (s *Superblock) groupWithin(group uint32, what string, b, n uint64) error {
	first, last := uint64(s.FirstDataBlock), s.BlocksCount
	if !s.FeatureIncompat.Has(IncompatFlexBG) { // every group keeps its own
		first = s.GroupFirstBlock(group)
		last = first + uint64(s.BlocksInGroup(group))
	}
	// Never the superblock or the descriptors themselves: writing a bitmap there would destroy the volume.
	first = max(first, s.SuperBlockNo()+1+uint64(s.DescBlocksIn(0)))
	if b >= first && b < last && last-b >= n {
		return nil
	}
	if n == 1 {
		what += " at"
	} else {
		what += fmt.Sprintf(" of %d blocks at", n)
	}
	return Corrupt(fmt.Sprintf("group descriptor %d", group), "%s block %d, outside %d to %d", what, b, first, last-1)
}

// bitmapCsum masks a bitmap's checksum to what the descriptor can hold.
func (s *Superblock) bitmapCsum(c uint32) uint32 {
	if s.DescSize() < GroupDescSize64 {
		return c & 0xFFFF
	}
	return c
}

// BlockBitmapCsum is what d.BlockBitmapCsum must be for this block bitmap, 0 without metadata_csum.
func (s *Superblock) BlockBitmapCsum(bitmap []byte) uint32 {
	if !s.MetadataCsum() {
		return 0
	}
	return s.bitmapCsum(CRC32C(s.CsumSeed(), bitmap[:s.ClustersPerGroup()/8]))
}

// InodeBitmapCsum is what d.InodeBitmapCsum must be for this inode bitmap, 0 without metadata_csum.
func (s *Superblock) InodeBitmapCsum(bitmap []byte) uint32 {
	if !s.MetadataCsum() {
		return 0
	}
	return s.bitmapCsum(CRC32C(s.CsumSeed(), bitmap[:(s.InodesPerGroup+7)/8]))
}
