package extent

import "github.com/lanefs/lanefs/fs/ext4/disk"

// Check walks the whole tree and returns the first thing wrong with it.
func (t *Tree) Check() error { return t.Walk(nil, nil) }

// Count is how many nodes and extents the tree has, the root aside.
func (t *Tree) Count() (nodes, extents uint64, err error) {
	err = t.Walk(
		func(disk.Block, int) error { nodes++; return nil },
		func(Extent) error { extents++; return nil })
	return nodes, extents, err
}

// Depth is the number of levels of nodes below the root.
func (t *Tree) Depth() (int, error) {
	if err := t.checkRoot(); err != nil {
		return 0, err
	}
	return node(t.Root).depth(), nil
}

// Next finds the first extent that ends after logical block l; false when there is none.
func (t *Tree) Next(l uint32) (Extent, bool, error) {
	for l < MaxBlock {
		x, err := t.Map(l, MaxBlock-l)
		if err != nil {
			return Extent{}, false, err
		}
		if !x.Hole() {
			return x, true, nil
		}
		l = x.End()
	}
	return Extent{}, false, nil
}
