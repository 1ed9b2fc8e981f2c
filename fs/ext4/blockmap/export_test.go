package blockmap

import (
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
)

// Check walks the whole map and returns the first thing wrong with it.
func (t *Tree) Check() error { return t.Walk(nil, nil) }

// Count is how many nodes and runs the map has, the root aside.
func (t *Tree) Count() (nodes, runs uint64, err error) {
	err = t.Walk(
		func(disk.Block, int) error { nodes++; return nil },
		func(extent.Extent) error { runs++; return nil })
	return nodes, runs, err
}

// Next finds the first run that ends after logical block l; false when there is none.
func (t *Tree) Next(l uint32) (extent.Extent, bool, error) {
	for l < t.MaxBlock() {
		x, err := t.Map(l, extent.MaxBlock-l)
		if err != nil {
			return extent.Extent{}, false, err
		}
		if !x.Hole() {
			return x, true, nil
		}
		l = x.End()
	}
	return extent.Extent{}, false, nil
}
