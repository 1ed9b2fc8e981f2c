package jbd2

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/bits"
	"strings"
	"time"
)

// The block header, [journal] "Block Header": everything is big-endian.
const (
	magic      = 0xc03b3998
	headerSize = 12

	typeDescriptor   = 1
	typeCommit       = 2
	typeSuperblockV1 = 3
	typeSuperblockV2 = 4
	typeRevoke       = 5
)

var be = binary.BigEndian

// header is struct journal_header_s.
type header struct {
	magic, blockType uint32
	sequence         TID
}

func readHeader(p []byte) header {
	return header{be.Uint32(p), be.Uint32(p[4:]), TID(be.Uint32(p[8:]))}
}

func (h header) put(p []byte) {
	be.PutUint32(p, magic)
	be.PutUint32(p[4:], h.blockType)
	be.PutUint32(p[8:], uint32(h.sequence))
}

// Features, [journal] "The journal compat features" and "incompat features".
type Features uint32

const (
	FeatureRevoke      Features = 0x1  // JBD2_FEATURE_INCOMPAT_REVOKE
	Feature64Bit       Features = 0x2  // JBD2_FEATURE_INCOMPAT_64BIT
	FeatureAsyncCommit Features = 0x4  // JBD2_FEATURE_INCOMPAT_ASYNC_COMMIT
	FeatureChecksumV2  Features = 0x8  // JBD2_FEATURE_INCOMPAT_CSUM_V2
	FeatureChecksumV3  Features = 0x10 // JBD2_FEATURE_INCOMPAT_CSUM_V3
	FeatureFastCommit  Features = 0x20 // JBD2_FEATURE_INCOMPAT_FAST_COMMIT

	knownFeatures = FeatureRevoke | Feature64Bit | FeatureAsyncCommit | FeatureChecksumV2 | FeatureChecksumV3 | FeatureFastCommit

	// compatChecksum is JBD2_FEATURE_COMPAT_CHECKSUM: the commit block sums up all blocks of its transaction.
	compatChecksum = 0x1
)

var featureNames = [...]string{"revoke", "64bit", "async_commit", "checksum_v2", "checksum_v3", "fast_commit"}

func (f Features) String() string {
	var s []string
	for f != 0 {
		n := bits.TrailingZeros32(uint32(f))
		if n < len(featureNames) {
			s = append(s, featureNames[n])
		} else {
			s = append(s, fmt.Sprintf("%#x", uint32(1)<<n))
		}
		f &= f - 1
	}
	if s == nil {
		return "none"
	}
	return strings.Join(s, ",")
}

// checksums says whether blocks of the journal carry crc32c checksums.
func (f Features) checksums() bool { return f&(FeatureChecksumV2|FeatureChecksumV3) != 0 }

const (
	checksumCRC32  = 1
	checksumCRC32C = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// crc32c goes on from sum without the inversions that Go's package makes.
func crc32c(sum uint32, p []byte) uint32 { return ^crc32.Update(^sum, castagnoli, p) }

var crc32beTable = func() (t [256]uint32) {
	for i := range t {
		c := uint32(i) << 24
		for range 8 {
			if c&(1<<31) != 0 {
				c = c<<1 ^ 0x04c11db7
			} else {
				c <<= 1
			}
		}
		t[i] = c
	}
	return t
}()

// crc32be is the CRC-32 of the first checksum version, most significant bit first and without inversions.
func crc32be(sum uint32, p []byte) uint32 {
	for _, b := range p {
		sum = sum<<8 ^ crc32beTable[byte(sum>>24)^b]
	}
	return sum
}

// layout is what the features say about the blocks of a log.
type layout struct {
	features  Features
	blockSize int
	seed      uint32 // crc32c of the journal's UUID
	uuid      [16]byte
}

// tailSize is the size of struct jbd2_journal_block_tail, at the end of descriptor and revoke blocks.
func (l *layout) tailSize() int {
	if l.features.checksums() {
		return 4
	}
	return 0
}

// sumAt is the checksum of block p with the 4 bytes at off taken as zero.
func (l *layout) sumAt(p []byte, off int) uint32 {
	s := crc32c(l.seed, p[:off])
	s = crc32c(s, []byte{0, 0, 0, 0})
	return crc32c(s, p[off+4:])
}

func (l *layout) setTail(p []byte) {
	if l.features.checksums() {
		off := l.blockSize - 4
		be.PutUint32(p[off:], l.sumAt(p, off))
	}
}

func (l *layout) tailOK(p []byte) bool {
	off := l.blockSize - 4
	return !l.features.checksums() || be.Uint32(p[off:]) == l.sumAt(p, off)
}

// Commit block, [journal] "Commit Block": struct commit_header is 60 bytes, the rest of the block zeroes.
const (
	commitHeaderSize = 60
	commitSumOff     = 16
)

// putCommit fills block p.
func (l *layout) putCommit(p []byte, tid TID, now time.Time) {
	clear(p)
	header{blockType: typeCommit, sequence: tid}.put(p)
	be.PutUint64(p[48:], uint64(now.Unix()))
	be.PutUint32(p[56:], uint32(now.Nanosecond()))
	if l.features.checksums() {
		be.PutUint32(p[commitSumOff:], l.sumAt(p, commitSumOff))
	}
}

// commitTime is the commit's time in nanoseconds, to compare.
func commitTime(p []byte) (sec uint64, nsec uint32) { return be.Uint64(p[48:]), be.Uint32(p[56:]) }

// commitOK checks the block's own checksum. A block of several sectors may be torn by a power cut: what counts is the
// header in the first sector, so the rest may be stale.
func (l *layout) commitOK(p []byte) bool {
	if !l.features.checksums() {
		return true
	}
	want := be.Uint32(p[commitSumOff:])
	if l.sumAt(p, commitSumOff) == want {
		return true
	}
	q := make([]byte, len(p))
	copy(q, p[:commitHeaderSize])
	return l.sumAt(q, commitSumOff) == want
}
