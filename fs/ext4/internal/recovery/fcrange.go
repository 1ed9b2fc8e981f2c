package recovery

import (
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/internal/contents"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

func (f *fastCommits) extent(r jbd2.FCAddRange) extent.Extent {
	node := make([]byte, disk.ExtentHeaderSize+disk.ExtentEntrySize)
	copy(node[disk.ExtentHeaderSize:], r.Extent[:])
	e := disk.GetExtent(node, 0)
	return extent.Extent{Lblk: e.Block, Len: e.Len, Pblk: disk.Block(e.Start), Unwritten: e.Unwritten}
}

// addRange maps blocks into a file. What is mapped there already stays if it is the same.
func (f *fastCommits) addRange(r jbd2.FCAddRange) error {
	i, err := f.get(r.Ino)
	if err != nil || i == nil || i.IsInline() || !i.Disk.IsReg() && !i.Disk.IsLink() {
		return err
	}
	x := f.extent(r)
	if x.Len == 0 || uint64(x.Lblk)+uint64(x.Len) > extent.MaxBlock {
		return disk.Corrupt("fast commits", "inode %d: range of %d blocks at %d", r.Ino, x.Len, x.Lblk)
	}
	for l := x.Lblk; l < x.End(); {
		have, err := contents.Tree(i, f.o).Map(l, x.End()-l)
		if err != nil {
			return err
		}
		want := x
		want.Lblk, want.Len, want.Pblk = l, have.Len, x.Pblk+disk.Block(l-x.Lblk)
		switch {
		case have == want:
		case have.Pblk == want.Pblk:
			err = contents.Extents(i, f.o).Convert(l, have.Len, want.Unwritten)
		default:
			if err = f.unmap(i, l, l+have.Len); err != nil {
				return err
			}
			var n uint32
			n, err = contents.Tree(i, f.o).Insert(want)
			contents.AddBlocks(i, int64(n))
		}
		if err != nil {
			return err
		}
		l += have.Len
	}
	return i.Store(f.o)
}

// delRange takes blocks from a file.
func (f *fastCommits) delRange(r jbd2.FCDelRange) error {
	i, err := f.get(r.Ino)
	if err != nil || i == nil || i.IsInline() || !i.Disk.IsReg() {
		return err
	}
	if err := f.unmap(i, r.Logical, uint32(min(uint64(r.Logical)+uint64(r.Len), extent.MaxBlock))); err != nil {
		return err
	}
	return i.Store(f.o)
}

func (f *fastCommits) unmap(i *volume.Inode, from, to uint32) error {
	for to > from {
		end, err := contents.Tree(i, f.o).Remove(from, to, 1<<20, f.leaves(i))
		if err != nil {
			return err
		}
		to = end
	}
	return nil
}

// leaves notes blocks that leave the tree of i.
func (f *fastCommits) leaves(i *volume.Inode) func(extent.Extent) error {
	return func(x extent.Extent) error {
		f.removed.add(x.Pblk, x.Len)
		contents.AddBlocks(i, -int64(x.Len))
		if !i.Disk.IsReg() {
			for k := range x.Len {
				f.o.Handle.Forget(x.Pblk + disk.Block(k))
			}
		}
		return nil
	}
}
