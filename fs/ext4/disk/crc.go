package disk

import "hash/crc32"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// CRC32C continues a crc32c over b from seed, the way ext4 chains it: nothing is inverted before or after. The first
// seed of a chain is usually ^uint32(0).
func CRC32C(seed uint32, b []byte) uint32 { return ^crc32.Update(^seed, castagnoli, b) }

// CRC32C32 continues a crc32c over the four little-endian bytes of v.
func CRC32C32(seed, v uint32) uint32 {
	c := seed
	for range 4 {
		c = c>>8 ^ castagnoli[byte(c)^byte(v)]
		v >>= 8
	}
	return c
}

// CRC32C64 continues a crc32c over the eight little-endian bytes of v.
func CRC32C64(seed uint32, v uint64) uint32 {
	return CRC32C32(CRC32C32(seed, uint32(v)), uint32(v>>32))
}

// crc32cZeros continues a crc32c over n zero bytes: a checksum field counts as zero in its own checksum.
func crc32cZeros(c uint32, n int) uint32 {
	for range n {
		c = c>>8 ^ castagnoli[byte(c)]
	}
	return c
}

var crc16Table = func() (t [256]uint16) {
	for i := range t {
		c := uint16(i)
		for range 8 {
			if c&1 != 0 {
				c = c>>1 ^ 0xA001
			} else {
				c >>= 1
			}
		}
		t[i] = c
	}
	return t
}()

// CRC16 continues a CRC-16 (polynomial 0x8005, reflected) over b: the checksum of group descriptors without
// metadata_csum.
func CRC16(seed uint16, b []byte) uint16 {
	c := seed
	for _, v := range b {
		c = c>>8 ^ crc16Table[byte(c)^v]
	}
	return c
}

// InodeSeed is the seed of checksums over what belongs to one inode: the inode itself, its extent blocks, its directory
// blocks. volume is Superblock.CsumSeed.
func InodeSeed(volume, ino, generation uint32) uint32 {
	return CRC32C32(CRC32C32(volume, ino), generation)
}
