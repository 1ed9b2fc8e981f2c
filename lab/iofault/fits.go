package iofault

import (
	"fmt"
	"maps"

	"github.com/lanefs/lanefs/lab/internal/files"
)

// fits returns "" if the volume may have been left with the tree.
func (t *try) fits(got Tree) string {
	if t.crowd != nil {
		return t.crowdFits(got)
	}
	between := t.trees[t.sure : t.reached+1]
	floor := map[files.ID]int{}
	for _, m := range []map[files.ID]int{t.floor, t.data} {
		for id, k := range m {
			floor[id] = max(floor[id], k-t.sure, 0)
		}
	}
	said := ""
	for k := t.reached; k >= t.sure; k-- {
		d := got.partly(t.trees[k], between, floor)
		if d == "" {
			d = t.floored(k)
		}
		if d == "" {
			return ""
		}
		if said == "" || k == t.sure && d != said {
			said += fmt.Sprintf("; it is not the tree after step %d, since %s", k, d)
		}
	}
	return fmt.Sprintf("of the trees from step %d, which is durable, to %d none is there%s", t.sure, t.reached, said)
}

// floored returns "" if tree k has all files as they were fsynced.
func (t *try) floored(k int) string {
	for id, at := range t.floor {
		if k >= at {
			continue
		}
		for p, want := range t.trees[at] {
			if want.ID != id {
				continue
			}
			if n := t.trees[k][p]; n == nil || n.ID != id || n.DiffAttrs(want) != "" || n.Size != want.Size {
				return fmt.Sprintf("%.60q, which was fsynced in step %d, is not as it was then", p, at)
			}
		}
	}
	return ""
}

// restoreXattrs gives the inodes that e2fsck truncated the attributes back that it dropped.
func (t Tree) restoreXattrs(want Tree, cut map[uint64]bool) {
	for p, n := range t {
		if w := want[p]; w != nil && cut[n.Ino] && len(n.Xattrs) < len(w.Xattrs) {
			c := *n
			c.Xattrs = maps.Clone(w.Xattrs)
			t[p] = &c
		}
	}
}
