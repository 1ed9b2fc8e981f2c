package jbd2

import "fmt"

// superblockSize is the size of struct journal_superblock_s, at the start of the journal's block 0.
const superblockSize = 1024

// minLogBlocks is the shortest log that the kernel opens (JBD2_MIN_JOURNAL_BLOCKS).
const minLogBlocks = 1024

// errnoCorrupt is what s_errno says of a volume with errors: EUCLEAN, which Linux also calls EFSCORRUPTED, negated.
const errnoCorrupt = -117

// superblock is the journal's superblock, [journal] "Super Block". Fields that this package does not change stay in
// raw.
type superblock struct {
	blockType  uint32
	blockSize  uint32 // s_blocksize
	maxLen     uint32 // s_maxlen: blocks of the journal, this one included
	first      uint32 // s_first: the log begins here
	sequence   TID    // s_sequence: of the first transaction in the log
	start      uint32 // s_start: the log block of that transaction, 0 when there is none
	errno      int32  // s_errno
	compat     uint32
	incompat   Features
	roCompat   uint32
	uuid       [16]byte
	users      uint32
	sumType    uint8
	fastBlocks uint32 // s_num_fc_blks
	head       uint32 // s_head: where an empty log goes on
	raw        []byte // the whole block as read
}

// parseSuper reads the superblock from the journal's first block.
func parseSuper(p []byte) (*superblock, error) {
	if len(p) < superblockSize {
		return nil, fmt.Errorf("%w: superblock of %d bytes", ErrCorrupt, len(p))
	}
	h := readHeader(p)
	if h.magic != magic {
		return nil, fmt.Errorf("%w: no journal superblock (magic %#x)", ErrCorrupt, h.magic)
	}
	if h.blockType != typeSuperblockV1 && h.blockType != typeSuperblockV2 {
		return nil, fmt.Errorf("%w: superblock of type %d", ErrCorrupt, h.blockType)
	}
	s := &superblock{
		blockType: h.blockType,
		blockSize: be.Uint32(p[0x0c:]), maxLen: be.Uint32(p[0x10:]), first: be.Uint32(p[0x14:]),
		sequence: TID(be.Uint32(p[0x18:])), start: be.Uint32(p[0x1c:]), errno: int32(be.Uint32(p[0x20:])),
		raw: append([]byte(nil), p...),
	}
	if h.blockType == typeSuperblockV1 {
		return s, nil // the rest is not defined
	}
	s.compat, s.incompat, s.roCompat = be.Uint32(p[0x24:]), Features(be.Uint32(p[0x28:])), be.Uint32(p[0x2c:])
	copy(s.uuid[:], p[0x30:])
	s.users = be.Uint32(p[0x40:])
	s.sumType = p[0x50]
	s.fastBlocks = be.Uint32(p[0x54:])
	s.head = be.Uint32(p[0x58:])

	if u := s.incompat &^ knownFeatures; u != 0 {
		return nil, fmt.Errorf("%w: unknown journal features %v", ErrUnsupported, u)
	}
	if s.roCompat != 0 {
		return nil, fmt.Errorf("%w: unknown read-only journal features %#x", ErrUnsupported, s.roCompat)
	}
	if s.incompat&FeatureChecksumV2 != 0 && s.incompat&FeatureChecksumV3 != 0 {
		return nil, fmt.Errorf("%w: checksum versions 2 and 3 at once", ErrCorrupt)
	}
	if s.incompat.checksums() {
		if s.compat&compatChecksum != 0 {
			return nil, fmt.Errorf("%w: checksum versions 1 and 2 or 3 at once", ErrCorrupt)
		}
		if s.sumType != checksumCRC32C {
			return nil, fmt.Errorf("%w: checksum type %d", ErrUnsupported, s.sumType)
		}
		if want := be.Uint32(p[0xfc:]); superSum(p) != want {
			return nil, fmt.Errorf("%w: checksum of the superblock is %#x, not %#x", ErrCorrupt, superSum(p), want)
		}
	}
	return s, nil
}

// superSum is s_checksum: of the 1024 bytes, itself taken as zero.
func superSum(p []byte) uint32 {
	s := crc32c(^uint32(0), p[:0xfc])
	s = crc32c(s, []byte{0, 0, 0, 0})
	return crc32c(s, p[0x100:superblockSize])
}

// put writes the superblock into the journal's first block p.
func (s *superblock) put(p []byte) {
	copy(p, s.raw)
	be.PutUint32(p, magic)
	be.PutUint32(p[4:], s.blockType)
	be.PutUint32(p[0x18:], uint32(s.sequence))
	be.PutUint32(p[0x1c:], s.start)
	be.PutUint32(p[0x20:], uint32(s.errno))
	if s.blockType == typeSuperblockV1 {
		return
	}
	be.PutUint32(p[0x24:], s.compat)
	be.PutUint32(p[0x28:], uint32(s.incompat))
	p[0x50] = s.sumType
	be.PutUint32(p[0x58:], s.head)
	if s.incompat.checksums() {
		be.PutUint32(p[0xfc:], superSum(p))
	} else {
		be.PutUint32(p[0xfc:], 0)
	}
}

// upgrade makes a version 1 superblock one of version 2, which can hold features.
func (s *superblock) upgrade() {
	if s.blockType == typeSuperblockV1 {
		clear(s.raw[0x24:])
		s.blockType = typeSuperblockV2
		s.users = 1
		be.PutUint32(s.raw[0x40:], 1)
	}
}

// bounds says where the log lies: blocks first ≤ n < last. fast is the fast-commit area, fastFirst ≤ n < fastLast, empty
// if there is none.
func (s *superblock) bounds() (last, fastFirst, fastLast uint32) {
	last = s.maxLen
	if s.incompat&FeatureFastCommit == 0 {
		return last, 0, 0
	}
	n := s.fastBlocks
	if n == 0 {
		n = 256 // JBD2_DEFAULT_FAST_COMMIT_BLOCKS
	}
	if n >= last || last-n < minLogBlocks {
		return last, 0, 0
	}
	// One block between the log and the area belongs to neither.
	return last - n, last - n + 1, last
}

func (s *superblock) layout() *layout {
	l := &layout{features: s.incompat, blockSize: int(s.blockSize), uuid: s.uuid}
	l.seed = crc32c(^uint32(0), s.uuid[:])
	return l
}
