package alloc

import (
	"encoding/binary"
	"math/bits"
)

// Bitmaps: bit i is bit i%8 of byte i/8; set means in use. Their length is a multiple of 8 bytes, and what is asked for
// lies inside them.

func word(b []byte, i uint32) uint64 { return binary.LittleEndian.Uint64(b[i/64*8:]) }

func testBit(b []byte, i uint32) bool { return b[i/8]>>(i%8)&1 != 0 }

// setBits sets [from, to).
func setBits(b []byte, from, to uint32) {
	for ; from < to && from%8 != 0; from++ {
		b[from/8] |= 1 << (from % 8)
	}
	for ; from+8 <= to; from += 8 {
		b[from/8] = 0xff
	}
	for ; from < to; from++ {
		b[from/8] |= 1 << (from % 8)
	}
}

// clearBits clears [from, to).
func clearBits(b []byte, from, to uint32) {
	for ; from < to && from%8 != 0; from++ {
		b[from/8] &^= 1 << (from % 8)
	}
	for ; from+8 <= to; from += 8 {
		b[from/8] = 0
	}
	for ; from < to; from++ {
		b[from/8] &^= 1 << (from % 8)
	}
}

// nextClear is the first clear bit in [i, end), end if there is none.
func nextClear(b []byte, i, end uint32) uint32 { return next(b, i, end, ^uint64(0)) }

// nextSet is the first set bit in [i, end), end if there is none.
func nextSet(b []byte, i, end uint32) uint32 { return next(b, i, end, 0) }

func next(b []byte, i, end uint32, flip uint64) uint32 {
	for i < end {
		w := (word(b, i) ^ flip) >> (i % 64)
		if w != 0 {
			return min(i+uint32(bits.TrailingZeros64(w)), end)
		}
		i = i&^63 + 64
	}
	return end
}

// runBefore is the start of the run of clear bits that ends at i.
func runBefore(b []byte, i uint32) uint32 {
	for i > 0 {
		if i%64 == 0 {
			if w := word(b, i-1); w != 0 {
				return i - uint32(bits.LeadingZeros64(w))
			}
			i -= 64
			continue
		}
		if testBit(b, i-1) {
			return i
		}
		i--
	}
	return 0
}

// countClear is how many of the first n bits are clear.
func countClear(b []byte, n uint32) uint32 {
	used := 0
	i := uint32(0)
	for ; i+64 <= n; i += 64 {
		used += bits.OnesCount64(word(b, i))
	}
	if i < n {
		used += bits.OnesCount64(word(b, i) & (1<<(n-i) - 1))
	}
	return n - uint32(used)
}

// longestRun is the length of the longest run of clear bits in [0, n).
func longestRun(b []byte, n uint32) (longest uint32) {
	for i := nextClear(b, 0, n); i < n; {
		end := nextSet(b, i, n)
		longest = max(longest, end-i)
		i = nextClear(b, end, n)
	}
	return longest
}

// run is a run of clear bits.
type run struct{ off, n uint32 }

// findRun looks for want clear bits in [0, n), from bit start to the end and then from the beginning. It prefers, within
// the first run that is long enough, a place where (base+off) is a multiple of align. If there is no such run it returns
// the longest, and exact says that there is none longer.
func findRun(b []byte, n, start, want uint32, base uint64, align uint32) (best run, exact bool) {
	scan := func(i, limit uint32) bool {
		for i = nextClear(b, i, n); i < limit; {
			end := nextSet(b, i, n)
			if end-i >= want {
				best = run{i, end - i}
				if skip := uint32(-(base + uint64(i)) & uint64(align-1)); skip < end-i && end-i-skip >= want {
					best = run{i + skip, end - i - skip}
				}
				return true
			}
			if end-i > best.n {
				best = run{i, end - i}
			}
			i = nextClear(b, end, n)
		}
		return false
	}
	if scan(start, n) {
		return best, false
	}
	return best, !scan(0, min(start, n))
}
