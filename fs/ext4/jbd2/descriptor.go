package jbd2

import "fmt"

// Tag flags, [journal] "The journal tag flags".
const (
	tagEscape   = 0x1
	tagSameUUID = 0x2
	tagDeleted  = 0x4
	tagLast     = 0x8
)

// tag is struct journal_block_tag3_s or journal_block_tag_s: where one block of a transaction belongs.
type tag struct {
	block Block
	flags uint32
	sum   uint32 // 16 bits of it in version 2
}

// tagSize is the size of a tag without UUID. Version 2 of the checksums counts the 16 bits of the checksum twice: the
// last two bytes of its tags are unused.
func (l *layout) tagSize() int {
	if l.features&FeatureChecksumV3 != 0 {
		return 16
	}
	n := 8
	if l.features&Feature64Bit != 0 {
		n += 4
	}
	if l.features&FeatureChecksumV2 != 0 {
		n += 2
	}
	return n
}

// tagsPerBlock is how many tags fit in one descriptor block; the first carries a UUID.
func (l *layout) tagsPerBlock() int {
	return (l.blockSize - headerSize - l.tailSize() - 16) / l.tagSize()
}

// dataSum is the checksum of a block in the log: over the sequence number and the block as it is in the log.
func (l *layout) dataSum(tid TID, p []byte) uint32 {
	var seq [4]byte
	be.PutUint32(seq[:], uint32(tid))
	return crc32c(crc32c(l.seed, seq[:]), p)
}

// sumOK compares a tag's checksum.
func (l *layout) sumOK(t tag, sum uint32) bool {
	switch {
	case l.features&FeatureChecksumV3 != 0:
		return t.sum == sum
	case l.features&FeatureChecksumV2 != 0:
		return t.sum == sum&0xffff
	}
	return true
}

// parseTags reads the tags of descriptor block p. The checksum of the block is the caller's.
func (l *layout) parseTags(p []byte) ([]tag, error) {
	size := l.tagSize()
	end := l.blockSize - l.tailSize()
	var tags []tag
	for off := headerSize; off+size <= end; {
		q := p[off:]
		var t tag
		t.block = Block(be.Uint32(q))
		if l.features&FeatureChecksumV3 != 0 {
			t.flags = be.Uint32(q[4:])
			if l.features&Feature64Bit != 0 {
				t.block |= Block(be.Uint32(q[8:])) << 32
			}
			t.sum = be.Uint32(q[12:])
		} else {
			t.sum = uint32(be.Uint16(q[4:]))
			t.flags = uint32(be.Uint16(q[6:]))
			if l.features&Feature64Bit != 0 {
				t.block |= Block(be.Uint32(q[8:])) << 32
			}
		}
		off += size
		if t.flags&tagSameUUID == 0 {
			off += 16
		}
		if off > end {
			return nil, fmt.Errorf("%w: a tag runs past the end of its descriptor block", ErrCorrupt)
		}
		tags = append(tags, t)
		if t.flags&tagLast != 0 {
			return tags, nil
		}
	}
	return tags, nil
}

// putDescriptor fills block p with the tags; at most tagsPerBlock.
func (l *layout) putDescriptor(p []byte, tid TID, tags []tag) {
	clear(p)
	header{blockType: typeDescriptor, sequence: tid}.put(p)
	off := headerSize
	for i, t := range tags {
		if i > 0 {
			t.flags |= tagSameUUID
		}
		if i == len(tags)-1 {
			t.flags |= tagLast
		}
		q := p[off:]
		be.PutUint32(q, uint32(t.block))
		if l.features&FeatureChecksumV3 != 0 {
			be.PutUint32(q[4:], t.flags)
			be.PutUint32(q[8:], uint32(t.block>>32))
			be.PutUint32(q[12:], t.sum)
		} else {
			if l.features&FeatureChecksumV2 != 0 {
				be.PutUint16(q[4:], uint16(t.sum))
			}
			be.PutUint16(q[6:], uint16(t.flags))
			if l.features&Feature64Bit != 0 {
				be.PutUint32(q[8:], uint32(t.block>>32))
			}
		}
		off += l.tagSize()
		if i == 0 {
			copy(p[off:], l.uuid[:])
			off += 16
		}
	}
	l.setTail(p)
}

// Revoke block, [journal] "Revocation Block".
const revokeHeaderSize = 16

func (l *layout) revokeSize() int {
	if l.features&Feature64Bit != 0 {
		return 8
	}
	return 4
}

func (l *layout) revokesPerBlock() int {
	return (l.blockSize - revokeHeaderSize - l.tailSize()) / l.revokeSize()
}

// putRevoke fills block p; at most revokesPerBlock blocks.
func (l *layout) putRevoke(p []byte, tid TID, blocks []Block) {
	clear(p)
	header{blockType: typeRevoke, sequence: tid}.put(p)
	off := revokeHeaderSize
	for _, b := range blocks {
		if l.features&Feature64Bit != 0 {
			be.PutUint64(p[off:], uint64(b))
		} else {
			be.PutUint32(p[off:], uint32(b))
		}
		off += l.revokeSize()
	}
	be.PutUint32(p[headerSize:], uint32(off))
	l.setTail(p)
}

// eachRevoke calls f for every block that p revokes.
func (l *layout) eachRevoke(p []byte, f func(Block)) error {
	end := be.Uint32(p[headerSize:])
	if end < revokeHeaderSize || uint64(end) > uint64(l.blockSize-l.tailSize()) {
		return fmt.Errorf("%w: revoke block of %d bytes", ErrCorrupt, end)
	}
	n := l.revokeSize()
	for off := revokeHeaderSize; off+n <= int(end); off += n {
		if n == 8 {
			f(Block(be.Uint64(p[off:])))
		} else {
			f(Block(be.Uint32(p[off:])))
		}
	}
	return nil
}
