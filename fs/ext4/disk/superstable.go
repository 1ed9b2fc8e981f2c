package disk

import "bytes"

// The superblock is two sectors of 512 bytes. What changes while a volume is mounted lies in the first, the checksum of
// both in the second. A power cut between the two leaves a superblock with a wrong checksum, which no driver mounts: the
// journal, which has a good copy, is found through the superblock. So the checksum is kept as it is, and four bytes of
// the first sector that no program reads are chosen such that it is right. Then either sector goes with either.

// spare gives the four bytes and where they are: at the end of a text, past the zero that ends it. s_last_mounted is the place,
// unless it is all text; the functions of the first and the last error are not read past their zero either.
func (s *Superblock) spare() (b []byte, at int) {
	for _, text := range []struct {
		b  []byte
		at int
	}{{s.LastMounted[:], 0x88}, {s.FirstErrorFunc[:], 0x1A8}, {s.LastErrorFunc[:], 0x1E0}} {
		if n := len(text.b) - 4; bytes.IndexByte(text.b[:n], 0) >= 0 {
			return text.b[n:], text.at + n
		}
	}
	return nil, 0
}

// EncodeStable is Encode with the checksum that the superblock has. A volume on which that is not possible, because
// every text fills its place, gets a new one.
func (s *Superblock) EncodeStable(b []byte) {
	free, at := s.spare()
	if !s.FeatureROCompat.Has(ROCompatMetadataCsum) || free == nil {
		s.Encode(b)
		return
	}
	clear(free)
	s.fields(codec{b: s.raw[:]})
	before := CRC32C(^uint32(0), s.raw[:at])
	le.PutUint32(free, before^s.stable.needed(s.Checksum, s.raw[at+4:0x3FC]))
	s.fields(codec{b: s.raw[:]})
	copy(b[:SuperblockSize], s.raw[:])
}

// stableSum remembers the last answer of needed: every commit asks, and what lies behind the spare bytes hardly changes.
type stableSum struct {
	sum, answer uint32
	b           []byte
}

// needed is what the crc32c before the spare bytes must be, xor these, so that b, which follows them, leads to sum.
func (c *stableSum) needed(sum uint32, b []byte) uint32 {
	if c.b == nil || c.sum != sum || !bytes.Equal(c.b, b) {
		c.sum, c.b = sum, append(c.b[:0], b...)
		c.answer = crc32cBack(crc32cBack(sum, b), make([]byte, 4))
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
