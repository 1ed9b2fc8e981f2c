package recovery

import (
	"cmp"
	"slices"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// blockSet is a set of blocks, kept as runs: in any order and overlapping while it is filled, sorted by normal.
type blockSet []blockRun

// blockRun is the blocks [from, to).
type blockRun struct{ from, to disk.Block }

func (s *blockSet) add(b disk.Block, n uint32) {
	if n > 0 {
		*s = append(*s, blockRun{b, b + disk.Block(n)})
	}
}

// normal is the set with its runs in order and apart.
func (s blockSet) normal() blockSet {
	s = slices.Clone(s)
	slices.SortFunc(s, func(a, b blockRun) int { return cmp.Compare(a.from, b.from) })
	var out blockSet
	for _, r := range s {
		if k := len(out) - 1; k >= 0 && r.from <= out[k].to {
			out[k].to = max(out[k].to, r.to)
			continue
		}
		out = append(out, r)
	}
	return out
}

// minus is the blocks of s that are not in t.
func (s blockSet) minus(t blockSet) (out blockSet) {
	t = t.normal()
	for _, r := range s.normal() {
		for _, u := range t {
			if u.to <= r.from || u.from >= r.to {
				continue
			}
			if u.from > r.from {
				out = append(out, blockRun{r.from, u.from})
			}
			r.from = min(u.to, r.to)
		}
		if r.from < r.to {
			out = append(out, r)
		}
	}
	return out
}
