// Package fill makes contents for tests. It is for those that write much, and run under the race detector.
package fill

import "unsafe"

// Fill writes a pattern that tells every 8 bytes apart. Each word is one store: a PutUint64 is eight for the race detector, which took most
// of the time of tests that write much.
func Fill(b []byte, seed uint64) {
	x := seed*0x9e3779b97f4a7c15 + 1
	next := func() uint64 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		return x
	}
	words := unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/8)
	for i := range words {
		words[i] = next()
	}
	if rest := b[len(words)*8:]; len(rest) > 0 {
		for i, w := 0, next(); i < len(rest); i, w = i+1, w>>8 {
			rest[i] = byte(w)
		}
	}
}
