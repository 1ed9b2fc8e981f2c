package disk

// inodeCsum computes the checksum of the inode in slot b ([layout] Checksums). full says that its high half is stored.
func inodeCsum(seed uint32, b []byte, full bool) uint32 {
	c := CRC32C(seed, b[:0x7C])
	c = crc32cZeros(c, 2)
	c = CRC32C(c, b[0x7E:InodeSizeRev0])
	if len(b) == InodeSizeRev0 {
		return c & 0xFFFF
	}
	c = CRC32C(c, b[InodeSizeRev0:0x82])
	if !full {
		return CRC32C(c, b[0x82:]) & 0xFFFF
	}
	c = crc32cZeros(c, 2)
	return CRC32C(c, b[0x84:])
}

// VerifyInode checks the checksum of an inode that was decoded from slot b.
func (s *Superblock) VerifyInode(ino uint32, n *Inode, b []byte) error {
	if !s.MetadataCsum() {
		return nil
	}
	want := inodeCsum(InodeSeed(s.CsumSeed(), ino, n.Generation), b, n.fits(endChecksumHi))
	if n.Checksum != want {
		return Corrupt(inodeName(ino), "checksum is %#08x, should be %#08x", n.Checksum, want)
	}
	return nil
}

func (s *Superblock) putInodeCsum(ino uint32, n *Inode, b []byte) {
	if !s.MetadataCsum() {
		return
	}
	full := n.fits(endChecksumHi)
	n.Checksum = inodeCsum(InodeSeed(s.CsumSeed(), ino, n.Generation), b, full)
	le.PutUint16(b[0x7C:], uint16(n.Checksum))
	if full {
		le.PutUint16(b[0x82:], uint16(n.Checksum>>16))
	}
}
