package contents

import (
	"errors"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
)

// writing is one handle's part of a Write: gather, then the transfers, then join.
type writing struct {
	i    *volume.Inode
	o    *volume.Op
	t    volume.Tree
	s    *stage
	list ioList
	runs []run  // in order: what is to be joined to the tree
	end  uint32 // where gather stopped

	whole extent.Extent // see writeRuns
}

// run is blocks that are new, or in the tree as unwritten.
type run struct {
	extent.Extent
	fresh bool
}

// gather collects transfers from logical block l on, with up to most runs and the blocks before them that are in their place, and allocates what there is no block for.
func (w *writing) gather(l uint32, most int) error {
	i, s := w.i, w.s
	goal := disk.Block(0)
	w.end = l
	for w.end <= s.last {
		x, err := w.t.Map(w.end, s.last-w.end+1)
		if err != nil {
			return err
		}
		if (x.Hole() || x.Unwritten) && len(w.runs) == most {
			return nil
		}
		if x.Hole() {
			if goal == 0 {
				goal = BlockGoal(i, x.Lblk)
			}
			x.Pblk, x.Len, err = w.alloc(x, goal)
			if errors.Is(err, volume.ErrNoSpace) && w.end > l {
				return nil // write what there is room for; the next handle reports the end of it
			}
			if err != nil {
				return err
			}
			w.runs = append(w.runs, run{x, true})
		} else if x.Unwritten {
			w.runs = append(w.runs, run{x, false})
		} else if len(w.runs) > 0 {
			// A block in its place can be read once it is written, those before it only after join: so the batch ends here.
			return nil
		}
		goal = x.Pblk + disk.Block(x.Len)
		w.list.add(blockdev.OpWrite, blockdev.Bytes(x.Pblk)<<i.FS.BlockBits, s.slice(x.Lblk, x.Len))
		w.end = x.End()
	}
	return nil
}

// alloc takes blocks for the start of the hole x, for x all if it can.
func (w *writing) alloc(x extent.Extent, goal disk.Block) (disk.Block, uint32, error) {
	i, want := w.i, min(x.Len, longestRun(w.i, false))
	if int64(x.End())<<i.FS.BlockBits > int64(i.Disk.Size) {
		return growBlocks(i, w.o, goal, want)
	}
	return AllocBlocks(i, w.o, goal, want)
}

// join puts the runs into the tree.
func (w *writing) join() error {
	for _, x := range w.runs {
		var err error
		switch {
		case x.fresh:
			_, err = w.t.Insert(x.Extent)
		case w.whole.Len > 0:
			err = Extents(w.i, w.o).Convert(w.whole.Lblk, w.whole.Len, false)
		default:
			err = Extents(w.i, w.o).Convert(x.Lblk, x.Len, false)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
