package disk

import "fmt"

// InodeSizeRev0 is the size of the part that every inode has.
const InodeSizeRev0 = 128

// InodeBlockSize is the size of i_block: block pointers, an extent tree's root, a short symlink, a device number or
// inline data.
const InodeBlockSize = 60

// File types in i_mode.
const (
	ModeFmt    = 0xF000
	ModeFifo   = 0x1000
	ModeChar   = 0x2000
	ModeDir    = 0x4000
	ModeBlock  = 0x6000
	ModeReg    = 0x8000
	ModeLink   = 0xA000
	ModeSocket = 0xC000
)

// Flags of an inode (i_flags, EXT4_*_FL).
const (
	FlSecrm        = 0x1
	FlUnrm         = 0x2
	FlCompr        = 0x4
	FlSync         = 0x8
	FlImmutable    = 0x10
	FlAppend       = 0x20
	FlNodump       = 0x40
	FlNoatime      = 0x80
	FlDirty        = 0x100
	FlComprblk     = 0x200
	FlNocompr      = 0x400
	FlEncrypt      = 0x800
	FlIndex        = 0x1000 // the directory is hash-indexed
	FlImagic       = 0x2000
	FlJournalData  = 0x4000
	FlNotail       = 0x8000
	FlDirsync      = 0x10000
	FlTopdir       = 0x20000
	FlHugeFile     = 0x40000 // i_blocks counts file-system blocks
	FlExtents      = 0x80000
	FlVerity       = 0x100000
	FlEAInode      = 0x200000 // holds the value of an extended attribute
	FlEofblocks    = 0x400000
	FlDAX          = 0x2000000
	FlInlineData   = 0x10000000
	FlProjinherit  = 0x20000000
	FlCasefold     = 0x40000000
	FlReserved     = 0x80000000
	FlUserVisible  = 0x705BDFFF
	FlUserModify   = 0x604BC0FF
	FlInherited    = FlSecrm | FlUnrm | FlCompr | FlSync | FlNodump | FlNoatime | FlNocompr | FlJournalData | FlNotail | FlDirsync | FlProjinherit | FlCasefold | FlDAX
	flRegMask      = ^uint32(FlDirsync | FlTopdir | FlCasefold | FlProjinherit)
	flOtherMask    = uint32(FlNodump | FlNoatime)
	maxTimeNoExtra = 1<<31 - 1
)

// InheritedFlags is what a new inode of the given mode takes over from its directory's flags.
func InheritedFlags(mode uint16, parent uint32) uint32 {
	f := parent & FlInherited
	switch mode & ModeFmt {
	case ModeDir:
		return f
	case ModeReg:
		return f & flRegMask
	}
	return f & flOtherMask
}

// Inode is struct ext4_inode ([layout] Index Nodes).
type Inode struct {
	Mode       uint16
	UID, GID   uint32
	Size       uint64
	Atime      Timestamp
	Ctime      Timestamp
	Mtime      Timestamp
	Crtime     Timestamp // zero if ExtraIsize has no room for it
	Dtime      uint32    // when it was deleted, or the next inode of the orphan list
	LinksCount uint16
	RawBlocks  uint64 // i_blocks, 48 bits; Sectors knows its unit
	Flags      uint32
	Version    uint64 // i_version: changes with every change
	Block      [InodeBlockSize]byte
	Generation uint32
	FileACL    uint64 // block of extended attributes, 0 if none
	ExtraIsize uint16 // bytes behind the first 128 that the members below and their like take
	Projid     uint32
	Checksum   uint32
}

// Where members behind the first 128 bytes end.
const (
	endChecksumHi  = 0x84
	endCtimeExtra  = 0x88
	endMtimeExtra  = 0x8C
	endAtimeExtra  = 0x90
	endCrtime      = 0x94
	endCrtimeExtra = 0x98
	endVersionHi   = 0x9C
	endProjid      = 0xA0

	// ExtraIsizeAll is the i_extra_isize that covers every member known today.
	ExtraIsizeAll = endProjid - InodeSizeRev0
)

// fits says whether a member that ends at end is there.
func (n *Inode) fits(end int) bool { return InodeSizeRev0+int(n.ExtraIsize) >= end }

// hurd says whether the Hurd made the volume: its inodes have the block of a passive translator where others have the low
// half of i_version, and more bits of the mode where others have the high half of i_file_acl.
func (s *Superblock) hurd() bool { return s.CreatorOS == creatorHurd }

// HasCrtime says whether the inode has room for its time of creation.
func (n *Inode) HasCrtime() bool { return n.fits(endCrtime) }

// HasProjid says whether the inode has room for a project.
func (n *Inode) HasProjid() bool { return n.fits(endProjid) }

// DecodeInode decodes the inode-table slot b, whose length is the volume's inode size. The checksum is not checked:
// VerifyInode does that.
func (s *Superblock) DecodeInode(ino uint32, b []byte) (Inode, error) {
	n := Inode{}
	if len(b) != int(s.InodeSize) {
		panic(fmt.Sprintf("disk: inode slot of %d bytes, inode size %d", len(b), s.InodeSize))
	}
	n.Mode = le.Uint16(b)
	n.UID = uint32(le.Uint16(b[0x02:])) | uint32(le.Uint16(b[0x78:]))<<16
	n.GID = uint32(le.Uint16(b[0x18:])) | uint32(le.Uint16(b[0x7A:]))<<16
	n.Size = uint64(le.Uint32(b[0x04:]))
	if t := n.Mode & ModeFmt; t == ModeReg || t == ModeDir && s.FeatureIncompat.Has(IncompatLargeDir) {
		n.Size |= uint64(le.Uint32(b[0x6C:])) << 32
	}
	n.Dtime = le.Uint32(b[0x14:])
	n.LinksCount = le.Uint16(b[0x1A:])
	n.RawBlocks = uint64(le.Uint32(b[0x1C:]))
	if s.FeatureROCompat.Has(ROCompatHugeFile) {
		n.RawBlocks |= uint64(le.Uint16(b[0x74:])) << 32
	}
	n.Flags = le.Uint32(b[0x20:])
	if !s.hurd() {
		n.Version = uint64(le.Uint32(b[0x24:]))
	}
	copy(n.Block[:], b[0x28:])
	n.Generation = le.Uint32(b[0x64:])
	n.FileACL = uint64(le.Uint32(b[0x68:]))
	if s.FeatureIncompat.Has(Incompat64Bit) && !s.hurd() {
		n.FileACL |= uint64(le.Uint16(b[0x76:])) << 32
	}
	n.Checksum = uint32(le.Uint16(b[0x7C:]))
	var xa, xc, xm, xcr uint32
	if len(b) > InodeSizeRev0 {
		n.ExtraIsize = le.Uint16(b[0x80:])
		if int(n.ExtraIsize) > len(b)-InodeSizeRev0 || n.ExtraIsize%4 != 0 {
			return n, Corrupt(inodeName(ino), "extra_isize %d in an inode of %d bytes", n.ExtraIsize, len(b))
		}
		if n.fits(endChecksumHi) {
			n.Checksum |= uint32(le.Uint16(b[0x82:])) << 16
		}
		if n.fits(endCtimeExtra) {
			xc = le.Uint32(b[0x84:])
		}
		if n.fits(endMtimeExtra) {
			xm = le.Uint32(b[0x88:])
		}
		if n.fits(endAtimeExtra) {
			xa = le.Uint32(b[0x8C:])
		}
		if n.fits(endCrtimeExtra) {
			xcr = le.Uint32(b[0x94:])
		}
		if n.fits(endCrtime) {
			n.Crtime = decodeTime(le.Uint32(b[0x90:]), xcr)
		}
		if n.fits(endVersionHi) {
			n.Version |= uint64(le.Uint32(b[0x98:])) << 32
		}
		if n.fits(endProjid) {
			n.Projid = le.Uint32(b[0x9C:])
		}
	}
	n.Atime = decodeTime(le.Uint32(b[0x08:]), xa)
	n.Ctime = decodeTime(le.Uint32(b[0x0C:]), xc)
	n.Mtime = decodeTime(le.Uint32(b[0x10:]), xm)
	return n, nil
}

// EncodeInode encodes n into its inode-table slot b, with its checksum where the volume has them, and updates
// n.Checksum. Bytes of the slot that no member covers stay; the extended attributes at its end must be in place before,
// for the checksum covers them.
func (s *Superblock) EncodeInode(ino uint32, n *Inode, b []byte) {
	if len(b) != int(s.InodeSize) || InodeSizeRev0+int(n.ExtraIsize) > len(b) {
		panic(fmt.Sprintf("disk: inode slot of %d bytes, inode size %d, extra_isize %d", len(b), s.InodeSize, n.ExtraIsize))
	}
	le.PutUint16(b, n.Mode)
	le.PutUint16(b[0x02:], uint16(n.UID))
	le.PutUint16(b[0x78:], uint16(n.UID>>16))
	le.PutUint16(b[0x18:], uint16(n.GID))
	le.PutUint16(b[0x7A:], uint16(n.GID>>16))
	le.PutUint32(b[0x04:], uint32(n.Size))
	if t := n.Mode & ModeFmt; t == ModeReg || t == ModeDir && s.FeatureIncompat.Has(IncompatLargeDir) {
		le.PutUint32(b[0x6C:], uint32(n.Size>>32))
	}
	le.PutUint32(b[0x14:], n.Dtime)
	le.PutUint16(b[0x1A:], n.LinksCount)
	le.PutUint32(b[0x1C:], uint32(n.RawBlocks))
	if s.FeatureROCompat.Has(ROCompatHugeFile) {
		le.PutUint16(b[0x74:], uint16(n.RawBlocks>>32))
	}
	le.PutUint32(b[0x20:], n.Flags)
	if !s.hurd() {
		le.PutUint32(b[0x24:], uint32(n.Version))
	}
	copy(b[0x28:], n.Block[:])
	le.PutUint32(b[0x64:], n.Generation)
	le.PutUint32(b[0x68:], uint32(n.FileACL))
	if s.FeatureIncompat.Has(Incompat64Bit) && !s.hurd() {
		le.PutUint16(b[0x76:], uint16(n.FileACL>>32))
	}
	put := func(off int, t Timestamp, extraOff int) {
		if lo, extra := t.encode(); n.fits(extraOff + 4) {
			le.PutUint32(b[off:], lo)
			le.PutUint32(b[extraOff:], extra)
		} else {
			le.PutUint32(b[off:], uint32(int32(min(max(t.Sec, minTime), maxTimeNoExtra))))
		}
	}
	put(0x08, n.Atime, 0x8C)
	put(0x0C, n.Ctime, 0x84)
	put(0x10, n.Mtime, 0x88)
	if len(b) > InodeSizeRev0 {
		le.PutUint16(b[0x80:], n.ExtraIsize)
		if n.fits(endCrtime) {
			put(0x90, n.Crtime, 0x94)
		}
		if n.fits(endVersionHi) {
			le.PutUint32(b[0x98:], uint32(n.Version>>32))
		}
		if n.fits(endProjid) {
			le.PutUint32(b[0x9C:], n.Projid)
		}
	}
	s.putInodeCsum(ino, n, b)
}

func inodeName(ino uint32) string { return fmt.Sprintf("inode %d", ino) }
