package extent

import "github.com/lanefs/lanefs/fs/ext4/disk"

// Walk visits the whole tree in order, checking all of it: every node before what is below it (visitNode, not called for
// the root), every extent (visitExtent). Either may be nil. It ends with the first error.
func (t *Tree) Walk(visitNode func(b disk.Block, depth int) error, visitExtent func(Extent) error) error {
	if err := t.checkRoot(); err != nil {
		return err
	}
	w := walker{t: t, node: visitNode, extent: visitExtent}
	return w.walk(0, node(t.Root), 0, MaxBlock)
}

type walker struct {
	t      *Tree
	node   func(disk.Block, int) error
	extent func(Extent) error
	end    uint32 // of the extent before
}

// walk goes through node n at block b, whose keys are in [lo, hi). It ends: depth falls with each level, and siblings
// have disjoint keys.
func (w *walker) walk(b disk.Block, n node, lo, hi uint32) error {
	for i := range n.entries() {
		if n.depth() == 0 {
			x := n.extent(i)
			if err := w.t.checkExtent(b, x); err != nil {
				return err
			}
			if x.Lblk < w.end || x.End() > hi {
				return w.t.corrupt(b, "extent at logical block %d overlaps another", x.Lblk)
			}
			w.end = x.End()
			if w.extent != nil {
				if err := w.extent(x); err != nil {
					return err
				}
			}
			continue
		}
		end := hi
		if i+1 < n.entries() {
			end = n.key(i + 1)
		}
		if err := w.child(n.child(i), n.depth()-1, n.key(i), end); err != nil {
			return err
		}
	}
	return nil
}

func (w *walker) child(b disk.Block, depth int, lo, hi uint32) error {
	buf, err := w.t.load(b, depth, lo, hi)
	if err != nil {
		return err
	}
	defer buf.Put()
	n := node(buf.Data())
	if err := w.t.checkEntries(b, n); err != nil {
		return err
	}
	if w.node != nil {
		if err := w.node(b, depth); err != nil {
			return err
		}
	}
	return w.walk(b, n, lo, hi)
}

// CheckRoot returns the first thing wrong with the root itself.
func (t *Tree) CheckRoot() error { return t.checkRoot() }
