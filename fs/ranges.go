package fs

import (
	"cmp"
	"math"
	"slices"

	"github.com/lanefs/lanefs/fs/ext4"
)

// byteRange is bytes [off, end) of a file.
type byteRange struct{ off, end int64 }

// rangesOf returns the ranges of transfers in order, those that adjoin as one, and whether some overlap.
func rangesOf(ts []ext4.Transfer) (all []byteRange, overlap bool) {
	all = make([]byteRange, 0, len(ts))
	for i := range ts {
		if t := &ts[i]; t.Off >= 0 && t.N > 0 { // else it is an error, or nothing
			all = append(all, byteRange{t.Off, t.Off + min(int64(t.N), math.MaxInt64-t.Off)})
		}
	}
	slices.SortFunc(all, func(a, b byteRange) int { return cmp.Compare(a.off, b.off) })
	n := 0
	for _, r := range all {
		switch {
		case n == 0 || r.off > all[n-1].end:
			all[n] = r
			n++
		case r.off < all[n-1].end:
			return nil, true
		default:
			all[n-1].end = r.end
		}
	}
	return all[:n], false
}
