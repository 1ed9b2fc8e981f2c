package disk

import "bytes"

// The superblock is two sectors of 512 bytes. What changes while a volume is mounted lies in the first, the checksum of
// both in the second. A power cut between the two leaves a superblock with a wrong checksum, and nobody mounts that: the
// journal, which has a good copy, is found through the superblock. So the checksum is kept as it is, and four bytes of
// the first sector that nobody reads are chosen such that it is right. Then either sector goes with either.

// spare is where the four bytes are: the end of s_last_mounted, past the zero that ends its text.
const spare = 0x88 + 60

// EncodeStable is Encode with the checksum that the superblock has. A volume on which that is not possible, because
// s_last_mounted is all text, gets a new one.
func (s *Superblock) EncodeStable(b []byte) {
	if !s.FeatureROCompat.Has(ROCompatMetadataCsum) || bytes.IndexByte(s.LastMounted[:60], 0) < 0 {
		s.Encode(b)
		return
	}
	clear(s.LastMounted[60:])
	s.fields(codec{b: s.raw[:]})
	before := CRC32C(^uint32(0), s.raw[:spare])
	le.PutUint32(s.LastMounted[60:], before^s.stable.needed(s.Checksum, s.raw[spare:0x3FC]))
	s.fields(codec{b: s.raw[:]})
	copy(b[:SuperblockSize], s.raw[:])
}

// stableSum remembers the last answer of needed: every commit asks, and what lies behind the spare bytes hardly changes.
// The zero value remembers that zeroes lead from 0 to 0.
type stableSum struct {
	sum, answer uint32
	b           [0x3FC - spare]byte
}

// needed is what the crc32c before b must be, xor the four bytes at its start, so that b leads to sum.
func (c *stableSum) needed(sum uint32, b []byte) uint32 {
	if c.sum != sum || !bytes.Equal(c.b[4:], b[4:]) {
		c.sum = sum
		copy(c.b[4:], b[4:]) // the first four are zero
		c.answer = crc32cBack(sum, c.b[:])
	}
	return c.answer
}

// crc32cBack is the crc32c from which b leads to c.
func crc32cBack(c uint32, b []byte) uint32 {
	for i := len(b) - 1; i >= 0; i-- {
		k := castagnoliTop[c>>24]
		c = (c^castagnoli[k])<<8 | uint32(k^b[i])
	}
	return c
}

// castagnoliTop finds the entry of castagnoli by its highest byte, which no two entries share.
var castagnoliTop = func() (t [256]byte) {
	for i, c := range castagnoli {
		t[c>>24] = byte(i)
	}
	return t
}()
