package disk

import (
	"bytes"
	"errors"
)

// Where the primary superblock lies, whatever the block size.
const (
	SuperblockOffset = 1024
	SuperblockSize   = 1024
	SuperMagic       = 0xEF53
)

// State bits (s_state).
const (
	StateValid  = 0x1 // cleanly unmounted
	StateError  = 0x2
	StateOrphan = 0x4
	StateFC     = 0x20 // fast-commit replay going on
)

// What to do when corruption is met (s_errors).
const (
	ErrorsContinue = 1
	ErrorsRO       = 2
	ErrorsPanic    = 3
)

// Bits of s_flags.
const (
	FlagSignedHash   = 0x1
	FlagUnsignedHash = 0x2
	FlagTestFilesys  = 0x4
)

// creatorHurd is the one of s_creator_os whose inodes are not Linux's (i_osd1, i_osd2).
const creatorHurd = 1

// Superblock is struct ext4_super_block ([layout] Super Block). Members split over the structure are joined. What it was
// decoded from is kept, so that Encode preserves bytes that no member covers.
type Superblock struct {
	InodesCount     uint32
	BlocksCount     uint64
	RBlocksCount    uint64 // reserved for the superuser
	FreeBlocksCount uint64 // blocks, also with bigalloc
	FreeInodesCount uint32
	FirstDataBlock  uint32
	LogBlockSize    uint32 // BlockSize is 1024 << this
	LogClusterSize  uint32
	BlocksPerGroup  uint32
	ClustersPerGrp  uint32 // s_clusters_per_group
	InodesPerGroup  uint32
	Mtime           uint64 // last mount, seconds, 40 bits on disk
	Wtime           uint64 // last write
	MntCount        uint16
	MaxMntCount     uint16
	State           uint16
	Errors          uint16
	MinorRevLevel   uint16
	Lastcheck       uint64
	Checkinterval   uint32
	CreatorOS       uint32
	RevLevel        uint32
	DefResuid       uint32
	DefResgid       uint32

	FirstIno        uint32 // first inode that is not special
	InodeSize       uint16
	BlockGroupNr    uint16 // group this copy lies in
	FeatureCompat   Compat
	FeatureIncompat Incompat
	FeatureROCompat ROCompat
	UUID            [16]byte
	VolumeName      [16]byte
	LastMounted     [64]byte

	AlgorithmUsageBitmap uint32
	PreallocBlocks       uint8
	PreallocDirBlocks    uint8
	ReservedGDTBlocks    uint16

	JournalUUID    [16]byte
	JournalInum    uint32
	JournalDev     uint32
	LastOrphan     uint32 // head of the orphan list
	HashSeed       [4]uint32
	DefHashVersion uint8
	JnlBackupType  uint8
	RawDescSize    uint16 // s_desc_size; DescSize is the size in force
	DefaultMntOpts uint32 // s_default_mount_opts
	FirstMetaBG    uint32
	MkfsTime       uint64
	JnlBlocks      [17]uint32

	MinExtraIsize     uint16
	WantExtraIsize    uint16
	Flags             uint32
	RaidStride        uint16
	MMPInterval       uint16
	MMPBlock          uint64
	RaidStripeWidth   uint32
	LogGroupsPerFlex  uint8
	ChecksumType      uint8 // 1: crc32c
	EncryptionLevel   uint8
	KbytesWritten     uint64
	SnapshotInum      uint32
	SnapshotID        uint32
	SnapshotRBlocks   uint64
	SnapshotList      uint32
	ErrorCount        uint32
	FirstErrorTime    uint64
	FirstErrorIno     uint32
	FirstErrorBlock   uint64
	FirstErrorFunc    [32]byte
	FirstErrorLine    uint32
	FirstErrorErrcode uint8
	LastErrorTime     uint64
	LastErrorIno      uint32
	LastErrorBlock    uint64
	LastErrorFunc     [32]byte
	LastErrorLine     uint32
	LastErrorErrcode  uint8
	MountOpts         [64]byte
	UsrQuotaInum      uint32
	GrpQuotaInum      uint32
	PrjQuotaInum      uint32
	OverheadBlocks    uint32 // s_overhead_clusters
	BackupBGs         [2]uint32
	EncryptAlgos      [4]byte
	EncryptPwSalt     [16]byte
	LpfIno            uint32
	ChecksumSeed      uint32
	Encoding          uint16
	EncodingFlags     uint16
	OrphanFileInum    uint32
	Checksum          uint32

	raw    [SuperblockSize]byte
	stable stableSum
}

// ErrNotExt4 says that a superblock does not have ext4's magic.
var ErrNotExt4 = Corrupt("superblock", "not an ext4 volume")

// DecodeSuperblock decodes the first SuperblockSize bytes of b and checks that the geometry can be. It checks neither
// the checksum (VerifyChecksum) nor the features.
func DecodeSuperblock(b []byte) (*Superblock, error) {
	if len(b) < SuperblockSize {
		return nil, Corrupt("superblock", "%d bytes, %d needed", len(b), SuperblockSize)
	}
	s := new(Superblock)
	copy(s.raw[:], b)
	if m := le.Uint16(b[0x38:]); m != SuperMagic {
		return nil, ErrNotExt4
	}
	s.fields(codec{b: s.raw[:], decode: true})
	if s.RevLevel == 0 {
		s.InodeSize, s.FirstIno = InodeSizeRev0, FirstInoRev0
	}
	if err := s.check(); err != nil {
		if s.FeatureIncompat.Has(IncompatJournalDev) {
			err = errors.New("the journal of another volume (journal_dev), not a volume")
		}
		return nil, err
	}
	return s, nil
}

// Encode writes the superblock into the first SuperblockSize bytes of b, with its checksum where the volume has one.
func (s *Superblock) Encode(b []byte) {
	_ = b[SuperblockSize-1]
	if s.FeatureROCompat.Has(ROCompatMetadataCsum) {
		s.fields(codec{b: s.raw[:]})
		s.Checksum = CRC32C(^uint32(0), s.raw[:0x3FC])
	}
	s.fields(codec{b: s.raw[:]})
	copy(b, s.raw[:])
}

// VerifyChecksum checks the checksum of the bytes that the superblock was decoded from.
func (s *Superblock) VerifyChecksum() error {
	if !s.FeatureROCompat.Has(ROCompatMetadataCsum) {
		return nil
	}
	if s.ChecksumType != 1 {
		return Corrupt("superblock", "checksum type %d is unknown", s.ChecksumType)
	}
	if got, want := le.Uint32(s.raw[0x3FC:]), CRC32C(^uint32(0), s.raw[:0x3FC]); got != want {
		return Corrupt("superblock", "checksum is %#08x, should be %#08x", got, want)
	}
	return nil
}

// CsumSeed is the seed of every metadata checksum but the superblock's own.
func (s *Superblock) CsumSeed() uint32 {
	if s.FeatureIncompat.Has(IncompatCsumSeed) {
		return s.ChecksumSeed
	}
	return CRC32C(^uint32(0), s.UUID[:])
}

// MetadataCsum says whether metadata carries crc32c checksums.
func (s *Superblock) MetadataCsum() bool { return s.FeatureROCompat.Has(ROCompatMetadataCsum) }

// Label is the volume's name.
func (s *Superblock) Label() string { return cString(s.VolumeName[:]) }

// UnsignedHash says whether directory hashes take the bytes of names as unsigned. A volume that does not say was
// written by a machine whose char is signed, as ours is taken to be.
func (s *Superblock) UnsignedHash() bool { return s.Flags&FlagUnsignedHash != 0 }

func cString(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}
