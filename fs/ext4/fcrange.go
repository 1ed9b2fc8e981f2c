package ext4

import (
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

func (f *fastCommits) extent(r jbd2.FCAddRange) extent.Extent {
	node := make([]byte, disk.ExtentHeaderSize+disk.ExtentEntrySize)
	copy(node[disk.ExtentHeaderSize:], r.Extent[:])
	e := disk.GetExtent(node, 0)
	return extent.Extent{Lblk: e.Block, Len: e.Len, Pblk: jbd2.Block(e.Start), Unwritten: e.Unwritten}
}

// addRange maps blocks into a file. What is mapped there already stays if it is the same.
func (f *fastCommits) addRange(r jbd2.FCAddRange) error {
	i, err := f.get(r.Ino)
	if err != nil || i == nil || i.inline() || !i.d.IsReg() && !i.d.IsLink() {
		return err
	}
	x := f.extent(r)
	if x.Len == 0 || uint64(x.Lblk)+uint64(x.Len) > extent.MaxBlock {
		return disk.Corrupt("fast commits", "inode %d: range of %d blocks at %d", r.Ino, x.Len, x.Lblk)
	}
	for l := x.Lblk; l < x.End(); {
		have, err := i.tree(f.o).Map(l, x.End()-l)
		if err != nil {
			return err
		}
		want := x
		want.Lblk, want.Len, want.Pblk = l, have.Len, x.Pblk+jbd2.Block(l-x.Lblk)
		switch {
		case have == want:
		case have.Pblk == want.Pblk:
			err = i.extents(f.o).Convert(l, have.Len, want.Unwritten)
		default:
			if err = f.unmap(i, l, l+have.Len); err != nil {
				return err
			}
			var n uint32
			n, err = i.tree(f.o).Insert(want)
			i.addBlocks(int64(n))
		}
		if err != nil {
			return err
		}
		l += have.Len
	}
	return i.store(f.o)
}

// delRange takes blocks from a file.
func (f *fastCommits) delRange(r jbd2.FCDelRange) error {
	i, err := f.get(r.Ino)
	if err != nil || i == nil || i.inline() || !i.d.IsReg() {
		return err
	}
	if err := f.unmap(i, r.Logical, uint32(min(uint64(r.Logical)+uint64(r.Len), extent.MaxBlock))); err != nil {
		return err
	}
	return i.store(f.o)
}

func (f *fastCommits) unmap(i *Inode, from, to uint32) error {
	for to > from {
		end, err := i.tree(f.o).Remove(from, to, 1<<20, f.leaves(i))
		if err != nil {
			return err
		}
		to = end
	}
	return nil
}

// leaves notes blocks that leave the tree of i.
func (f *fastCommits) leaves(i *Inode) func(extent.Extent) error {
	return func(x extent.Extent) error {
		f.removed.add(x.Pblk, x.Len)
		i.addBlocks(-int64(x.Len))
		if !i.d.IsReg() {
			for k := range x.Len {
				f.o.h.Forget(x.Pblk + jbd2.Block(k))
			}
		}
		return nil
	}
}
