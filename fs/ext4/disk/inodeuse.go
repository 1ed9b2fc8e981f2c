package disk

// This file is about what the members of an inode mean together.

// IsDir, IsReg, IsLink and IsDevice say what kind of file the inode is.
func (n *Inode) IsDir() bool  { return n.Mode&ModeFmt == ModeDir }
func (n *Inode) IsReg() bool  { return n.Mode&ModeFmt == ModeReg }
func (n *Inode) IsLink() bool { return n.Mode&ModeFmt == ModeLink }
func (n *Inode) IsDevice() bool {
	return n.Mode&ModeFmt == ModeChar || n.Mode&ModeFmt == ModeBlock
}

// Sectors is the space that the file takes, in units of 512 bytes.
func (s *Superblock) Sectors(n *Inode) uint64 {
	if n.Flags&FlHugeFile != 0 && s.FeatureROCompat.Has(ROCompatHugeFile) {
		return n.RawBlocks << (s.BlockBits() - 9)
	}
	return n.RawBlocks
}

// SetSectors records the space that the file takes, in units of 512 bytes, and sets or clears FlHugeFile. It reports
// false when the volume has no way to say so much.
func (s *Superblock) SetSectors(n *Inode, sectors uint64) bool {
	huge := s.FeatureROCompat.Has(ROCompatHugeFile)
	switch {
	case sectors < 1<<32, huge && sectors < 1<<48:
		n.RawBlocks = sectors
		n.Flags &^= FlHugeFile
		return true
	case huge && sectors>>(s.BlockBits()-9) < 1<<48:
		n.RawBlocks = sectors >> (s.BlockBits() - 9)
		n.Flags |= FlHugeFile
		return true
	}
	return false
}

// RoundTimes makes the times what the inode has room for: without the extra members, whole seconds up to 2038.
func (n *Inode) RoundTimes() {
	n.Atime = n.RoundAtime(n.Atime)
	n.Ctime = n.round(n.Ctime, endCtimeExtra)
	n.Mtime = n.round(n.Mtime, endMtimeExtra)
}

// RoundAtime is what RoundTimes makes of an access time.
func (n *Inode) RoundAtime(t Timestamp) Timestamp { return n.round(t, endAtimeExtra) }

func (n *Inode) round(t Timestamp, end int) Timestamp {
	if n.fits(end) {
		return t
	}
	return Timestamp{Sec: min(max(t.Sec, minTime), maxTimeNoExtra)}
}

// XattrArea is the part of the inode's slot b behind its members, where extended attributes can be; empty if there is
// none.
func (n *Inode) XattrArea(b []byte) []byte {
	if n.ExtraIsize == 0 || len(b) <= InodeSizeRev0 {
		return nil
	}
	return b[InodeSizeRev0+int(n.ExtraIsize):]
}

// Device is the number of the device that a node stands for.
func (n *Inode) Device() (major, minor uint32) {
	if v := le.Uint32(n.Block[0:]); v != 0 {
		return v >> 8 & 0xFF, v & 0xFF
	}
	v := le.Uint32(n.Block[4:])
	return v >> 8 & 0xFFF, v&0xFF | v>>12&0xFFF00
}

// SetDevice records the number of the device that a node stands for: in the old form of 8 + 8 bits where it fits, else
// in the new one of 12 + 20. It reports false if the numbers fit neither.
func (n *Inode) SetDevice(major, minor uint32) bool {
	n.Block = [InodeBlockSize]byte{}
	switch {
	case major < 1<<8 && minor < 1<<8:
		le.PutUint32(n.Block[0:], major<<8|minor)
	case major < 1<<12 && minor < 1<<20:
		le.PutUint32(n.Block[4:], minor&0xFF|major<<8|minor&0xFFF00<<12)
	default:
		return false
	}
	return true
}
