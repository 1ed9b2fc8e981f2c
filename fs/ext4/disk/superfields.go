package disk

// codec moves members between a structure and its bytes, one way or the other, so that each offset is written once.
type codec struct {
	b      []byte
	decode bool
}

func (c codec) u8(off int, v *uint8) {
	if c.decode {
		*v = c.b[off]
	} else {
		c.b[off] = *v
	}
}

func (c codec) u16(off int, v *uint16) {
	if c.decode {
		*v = le.Uint16(c.b[off:])
	} else {
		le.PutUint16(c.b[off:], *v)
	}
}

func (c codec) u32(off int, v *uint32) {
	if c.decode {
		*v = le.Uint32(c.b[off:])
	} else {
		le.PutUint32(c.b[off:], *v)
	}
}

func (c codec) u64(off int, v *uint64) {
	if c.decode {
		*v = le.Uint64(c.b[off:])
	} else {
		le.PutUint64(c.b[off:], *v)
	}
}

// u32hi8 is a 40-bit time: 32 bits at lo, 8 more at hi.
func (c codec) u32hi8(lo, hi int, v *uint64) {
	if c.decode {
		*v = uint64(c.b[hi])<<32 | uint64(le.Uint32(c.b[lo:]))
	} else {
		le.PutUint32(c.b[lo:], uint32(*v))
		c.b[hi] = uint8(*v >> 32)
	}
}

// u32hi32 is a 64-bit number in two places. Without the 64bit feature only the low half counts.
func (c codec) u32hi32(lo, hi int, wide bool, v *uint64) {
	if c.decode {
		*v = uint64(le.Uint32(c.b[lo:]))
		if wide {
			*v |= uint64(le.Uint32(c.b[hi:])) << 32
		}
		return
	}
	le.PutUint32(c.b[lo:], uint32(*v))
	if wide {
		le.PutUint32(c.b[hi:], uint32(*v>>32))
	}
}

// u16hi16 is a 32-bit number in two places.
func (c codec) u16hi16(lo, hi int, v *uint32) {
	if c.decode {
		*v = uint32(le.Uint16(c.b[lo:])) | uint32(le.Uint16(c.b[hi:]))<<16
	} else {
		le.PutUint16(c.b[lo:], uint16(*v))
		le.PutUint16(c.b[hi:], uint16(*v>>16))
	}
}

func (c codec) bytes(off int, v []byte) {
	if c.decode {
		copy(v, c.b[off:off+len(v)])
	} else {
		copy(c.b[off:off+len(v)], v)
	}
}

func (s *Superblock) fields(c codec) {
	c.u32(0x5C, (*uint32)(&s.FeatureCompat))
	c.u32(0x60, (*uint32)(&s.FeatureIncompat))
	c.u32(0x64, (*uint32)(&s.FeatureROCompat))
	wide := s.FeatureIncompat.Has(Incompat64Bit)

	c.u32(0x00, &s.InodesCount)
	c.u32hi32(0x04, 0x150, wide, &s.BlocksCount)
	c.u32hi32(0x08, 0x154, wide, &s.RBlocksCount)
	c.u32hi32(0x0C, 0x158, wide, &s.FreeBlocksCount)
	c.u32(0x10, &s.FreeInodesCount)
	c.u32(0x14, &s.FirstDataBlock)
	c.u32(0x18, &s.LogBlockSize)
	c.u32(0x1C, &s.LogClusterSize)
	c.u32(0x20, &s.BlocksPerGroup)
	c.u32(0x24, &s.ClustersPerGrp)
	c.u32(0x28, &s.InodesPerGroup)
	c.u32hi8(0x2C, 0x275, &s.Mtime)
	c.u32hi8(0x30, 0x274, &s.Wtime)
	c.u16(0x34, &s.MntCount)
	c.u16(0x36, &s.MaxMntCount)
	c.u16(0x3A, &s.State)
	c.u16(0x3C, &s.Errors)
	c.u16(0x3E, &s.MinorRevLevel)
	c.u32hi8(0x40, 0x277, &s.Lastcheck)
	c.u32(0x44, &s.Checkinterval)
	c.u32(0x48, &s.CreatorOS)
	c.u32(0x4C, &s.RevLevel)
	c.u16hi16(0x50, 0x284, &s.DefResuid)
	c.u16hi16(0x52, 0x286, &s.DefResgid)
	if c.decode || s.RevLevel > 0 { // revision 0 has neither
		c.u32(0x54, &s.FirstIno)
		c.u16(0x58, &s.InodeSize)
	}
	c.u16(0x5A, &s.BlockGroupNr)
	c.bytes(0x68, s.UUID[:])
	c.bytes(0x78, s.VolumeName[:])
	c.bytes(0x88, s.LastMounted[:])
	c.u32(0xC8, &s.AlgorithmUsageBitmap)
	c.u8(0xCC, &s.PreallocBlocks)
	c.u8(0xCD, &s.PreallocDirBlocks)
	c.u16(0xCE, &s.ReservedGDTBlocks)
	c.bytes(0xD0, s.JournalUUID[:])
	c.u32(0xE0, &s.JournalInum)
	c.u32(0xE4, &s.JournalDev)
	c.u32(0xE8, &s.LastOrphan)
	for i := range s.HashSeed {
		c.u32(0xEC+4*i, &s.HashSeed[i])
	}
	c.u8(0xFC, &s.DefHashVersion)
	c.u8(0xFD, &s.JnlBackupType)
	c.u16(0xFE, &s.RawDescSize)
	c.u32(0x100, &s.DefaultMntOpts)
	c.u32(0x104, &s.FirstMetaBG)
	c.u32hi8(0x108, 0x276, &s.MkfsTime)
	for i := range s.JnlBlocks {
		c.u32(0x10C+4*i, &s.JnlBlocks[i])
	}
	c.u16(0x15C, &s.MinExtraIsize)
	c.u16(0x15E, &s.WantExtraIsize)
	c.u32(0x160, &s.Flags)
	c.u16(0x164, &s.RaidStride)
	c.u16(0x166, &s.MMPInterval)
	c.u64(0x168, &s.MMPBlock)
	c.u32(0x170, &s.RaidStripeWidth)
	c.u8(0x174, &s.LogGroupsPerFlex)
	c.u8(0x175, &s.ChecksumType)
	c.u8(0x176, &s.EncryptionLevel)
	c.u64(0x178, &s.KbytesWritten)
	c.u32(0x180, &s.SnapshotInum)
	c.u32(0x184, &s.SnapshotID)
	c.u64(0x188, &s.SnapshotRBlocks)
	c.u32(0x190, &s.SnapshotList)
	c.u32(0x194, &s.ErrorCount)
	c.u32hi8(0x198, 0x278, &s.FirstErrorTime)
	c.u32(0x19C, &s.FirstErrorIno)
	c.u64(0x1A0, &s.FirstErrorBlock)
	c.bytes(0x1A8, s.FirstErrorFunc[:])
	c.u32(0x1C8, &s.FirstErrorLine)
	c.u32hi8(0x1CC, 0x279, &s.LastErrorTime)
	c.u32(0x1D0, &s.LastErrorIno)
	c.u32(0x1D4, &s.LastErrorLine)
	c.u64(0x1D8, &s.LastErrorBlock)
	c.bytes(0x1E0, s.LastErrorFunc[:])
	c.bytes(0x200, s.MountOpts[:])
	c.u32(0x240, &s.UsrQuotaInum)
	c.u32(0x244, &s.GrpQuotaInum)
	c.u32(0x248, &s.OverheadBlocks)
	c.u32(0x24C, &s.BackupBGs[0])
	c.u32(0x250, &s.BackupBGs[1])
	c.bytes(0x254, s.EncryptAlgos[:])
	c.bytes(0x258, s.EncryptPwSalt[:])
	c.u32(0x268, &s.LpfIno)
	c.u32(0x26C, &s.PrjQuotaInum)
	c.u32(0x270, &s.ChecksumSeed)
	c.u8(0x27A, &s.FirstErrorErrcode)
	c.u8(0x27B, &s.LastErrorErrcode)
	c.u16(0x27C, &s.Encoding)
	c.u16(0x27E, &s.EncodingFlags)
	c.u32(0x280, &s.OrphanFileInum)
	c.u32(0x3FC, &s.Checksum)
}
