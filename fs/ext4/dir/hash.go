package dir

import (
	"fmt"
	"math/bits"
)

// Versions of the hash in an index's root ([layout] Hash Tree Directories). The unsigned variants exist in memory only:
// which one a volume uses is in its superblock.
const (
	HashLegacy  = 0
	HashHalfMD4 = 1
	HashTEA     = 2
	HashSiphash = 6
)

// hashEOF is what the largest hash may not be: it would mean the end of the directory.
const hashEOF = 0x7fffffff << 1

// Hash is how a directory hashes names.
type Hash struct {
	Version  uint8
	Unsigned bool // bytes of names are taken as unsigned
	Seed     [4]uint32
}

// Sum is the hash of a name: major orders the index and is even, minor is a second word that the index does not use.
func (h *Hash) Sum(name string) (major, minor uint32) {
	buf := [4]uint32{0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476}
	if h.Seed != [4]uint32{} {
		buf = h.Seed
	}
	switch h.Version {
	case HashLegacy:
		major = h.legacy(name)
	case HashHalfMD4:
		var in [8]uint32
		for rest := name; len(rest) > 0; rest = rest[min(32, len(rest)):] {
			h.words(rest, in[:])
			halfMD4(&buf, &in)
		}
		major, minor = buf[1], buf[2]
	case HashTEA:
		var in [4]uint32
		for rest := name; len(rest) > 0; rest = rest[min(16, len(rest)):] {
			h.words(rest, in[:])
			tea(&buf, &in)
		}
		major, minor = buf[0], buf[1]
	default:
		panic(fmt.Sprintf("dir: hash version %d", h.Version))
	}
	major &^= 1
	if major == hashEOF {
		major = hashEOF - 2
	}
	return major, minor
}

// char is a byte of a name as a number.
func (h *Hash) char(c byte) uint32 {
	if h.Unsigned {
		return uint32(c)
	}
	return uint32(int32(int8(c)))
}

// legacy is the hash of the first indexed directories.
func (h *Hash) legacy(name string) uint32 {
	h0, h1 := uint32(0x12a3fe2d), uint32(0x37abe8f9)
	for i := range len(name) {
		v := h1 + (h0 ^ h.char(name[i])*7152373)
		if v&0x80000000 != 0 {
			v -= 0x7fffffff
		}
		h0, h1 = v, h0
	}
	return h0 << 1
}

// words fills out with the name's bytes, four to a word, first byte highest, and pads with the name's length.
func (h *Hash) words(name string, out []uint32) {
	pad := uint32(len(name)) * 0x01010101
	if len(name) > 255 {
		panic("dir: name too long")
	}
	n := min(len(name), 4*len(out))
	for i := range out {
		v := pad
		for j := 4 * i; j < min(4*i+4, n); j++ {
			v = h.char(name[j]) + v<<8
		}
		out[i] = v
	}
}

// tea is the Tiny Encryption Algorithm, 16 rounds, as a compression function.
func tea(buf *[4]uint32, key *[4]uint32) {
	x, y := buf[0], buf[1]
	sum := uint32(0)
	for range 16 {
		sum += 0x9E3779B9
		x += (y<<4 + key[0]) ^ (y + sum) ^ (y>>5 + key[1])
		y += (x<<4 + key[2]) ^ (x + sum) ^ (x>>5 + key[3])
	}
	buf[0] += x
	buf[1] += y
}

// md4Steps is, for each of the three rounds, the order in which half MD4 takes its eight words, and the rotations of
// its four turns.
var md4Steps = [3]struct {
	word   [8]uint8
	rotate [4]uint8
}{
	{[8]uint8{0, 1, 2, 3, 4, 5, 6, 7}, [4]uint8{3, 7, 11, 19}},
	{[8]uint8{1, 3, 5, 7, 0, 2, 4, 6}, [4]uint8{3, 5, 9, 13}},
	{[8]uint8{3, 7, 2, 6, 1, 5, 0, 4}, [4]uint8{3, 9, 11, 15}},
}

// halfMD4 is MD4's compression function cut to three rounds of eight steps.
func halfMD4(buf *[4]uint32, in *[8]uint32) {
	a, b, c, d := buf[0], buf[1], buf[2], buf[3]
	for i := range 8 {
		f := d ^ b&(c^d)
		a = bits.RotateLeft32(a+f+in[i], int(md4Steps[0].rotate[i&3]))
		a, b, c, d = d, a, b, c
	}
	for i := range 8 {
		f := b&c + (b^c)&d
		a = bits.RotateLeft32(a+f+in[md4Steps[1].word[i]]+0x5A827999, int(md4Steps[1].rotate[i&3]))
		a, b, c, d = d, a, b, c
	}
	for i := range 8 {
		f := b ^ c ^ d
		a = bits.RotateLeft32(a+f+in[md4Steps[2].word[i]]+0x6ED9EBA1, int(md4Steps[2].rotate[i&3]))
		a, b, c, d = d, a, b, c
	}
	buf[0] += a
	buf[1] += b
	buf[2] += c
	buf[3] += d
}
