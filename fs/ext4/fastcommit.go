package ext4

import (
	"errors"
	"fmt"
	"time"

	"github.com/lanefs/lanefs/fs/ext4/dir"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// Fast commits ([layout] journal, "Fast commits") are what the kernel logs for an fsync on volumes with fast_commit: not
// the blocks that changed, but what was done, since the last whole transaction. They say nothing of bitmaps, of the
// inner nodes of trees, or of where in a directory a name lies: replaying does the operations again.
//
//  1. take the blocks that the records give to files, so that nothing else is put there
//  2. each record in turn: inodes, ranges, names
//  3. free what no file has any more; inodes without links become orphans
//
// All of it is one transaction, which makes the records void: either they are replayed or they are still there, wherever
// the power fails. It fits: the kernel logs for one transaction, which may have a quarter of the log, and commits that as
// a whole when there is more. A volume whose records change more than the log holds is left as it is, for e2fsck.

// fastCommits is the replay.
type fastCommits struct {
	v    *FS
	recs []jbd2.FCRecord

	o       *op
	inodes  map[uint32]*Inode // touched, referenced
	orphans []*Inode          // as the volume's own lists have them
	dirs    map[*Inode]bool   // whose subdirectories changed
	claimed blockSet          // free before, and given to files by the records
	removed blockSet          // taken from files
}

// readFastCommits collects the records.
func (v *FS) readFastCommits(r *jbd2.Recovery) (*fastCommits, error) {
	f := &fastCommits{v: v, inodes: map[uint32]*Inode{}, dirs: map[*Inode]bool{}}
	err := r.FastCommits(func(rec jbd2.FCRecord) error {
		f.recs = append(f.recs, rec)
		return nil
	})
	return f, err
}

// startFastCommits opens the journal in which the records are replayed.
func (v *FS) startFastCommits(r *jbd2.Recovery, cfg jbd2.Config, sum jbd2.Checksum, wide bool) error {
	f, err := v.readFastCommits(r)
	if err != nil {
		return err
	}
	v.fast = f
	v.jnl, err = r.Resume(cfg, sum, wide)
	return err
}

// replayFastCommits replays them, and returns the orphans with those that this adds.
func (v *FS) replayFastCommits(orphans []*Inode) ([]*Inode, error) {
	f := v.fast
	if f == nil {
		return orphans, nil
	}
	v.fast = nil
	f.orphans = orphans
	err := v.change(nil, func(o *op) error {
		return o.once(v.jnl.MaxCredits(), func() error {
			f.o = o
			err := f.replay()
			if err == nil {
				err = o.h.Fits()
			}
			if errors.Is(err, jbd2.ErrTooLarge) {
				err = fmt.Errorf("%w: nothing was changed; let e2fsck replay them", err)
			}
			if err != nil && !isCorrupt(err) {
				v.jnl.Stop(err) // before the handle ends: the records stay
			}
			return err
		})
	})
	if err == nil {
		err = v.jnl.Commit()
	}
	if err != nil {
		v.jnl.Stop(err)
		return f.orphans, fmt.Errorf("replaying fast commits: %w", err)
	}
	v.opt.Logf("%s: replayed %d records of fast commits", v.name(), len(f.recs))
	for _, i := range f.inodes {
		i.Put() // orphans have a reference of their own
	}
	return f.orphans, err
}

func (f *fastCommits) replay() error {
	for _, rec := range f.recs {
		r, ok := rec.(jbd2.FCAddRange)
		if !ok {
			continue
		}
		x := f.extent(r)
		if err := f.v.alloc.Claim(f.o.h, x.Pblk, x.Len, f.claimed.add); err != nil {
			return err
		}
	}
	for _, rec := range f.recs {
		var err error
		switch r := rec.(type) {
		case jbd2.FCInode:
			err = f.inode(r)
		case jbd2.FCAddRange:
			err = f.addRange(r)
		case jbd2.FCDelRange:
			err = f.delRange(r)
		case jbd2.FCName:
			err = f.name(r)
		}
		if err != nil {
			return err
		}
	}
	return f.finish()
}

// get is inode ino if it is in use, nil if not: what a record says of it is void then.
func (f *fastCommits) get(ino uint32) (*Inode, error) {
	if i := f.inodes[ino]; i != nil {
		return i, nil
	}
	if ino < f.v.sb.FirstIno && ino != disk.InoRoot {
		return nil, disk.Corrupt("fast commits", "inode %d cannot be there", ino)
	}
	used, err := f.v.alloc.InodeInUse(ino)
	if err != nil || !used {
		return nil, err
	}
	i, err := f.v.get(ino)
	if err == nil {
		f.inodes[ino] = i
	}
	return i, err
}

// inode gives an inode the members that the record has: all but its tree, which the ranges change.
func (f *fastCommits) inode(r jbd2.FCInode) error {
	v := f.v
	if !v.sb.ValidIno(r.Ino) || r.Ino < v.sb.FirstIno {
		return disk.Corrupt("fast commits", "inode %d cannot be there", r.Ino)
	}
	raw := make([]byte, v.sb.InodeSize)
	copy(raw, r.Raw)
	d, err := v.sb.DecodeInode(r.Ino, raw)
	if err != nil {
		return err
	}
	if err := v.checkInode(r.Ino, &d); err != nil {
		return err
	}
	i, err := f.get(r.Ino)
	if err != nil {
		return err
	}
	fresh := i == nil
	switch {
	case fresh && (d.LinksCount == 0 || d.Mode == 0):
		return nil // deleted since
	case fresh:
		if i, err = f.newInode(r.Ino, &d); err != nil {
			return err
		}
	case i.d.Generation != d.Generation || i.d.Mode&disk.ModeFmt != d.Mode&disk.ModeFmt:
		// Another file had the number before.
		if err := f.empty(i, d.IsDir()); err != nil {
			return err
		}
		fresh = true
	}
	old := i.d
	i.d = d
	i.d.Dtime = 0
	i.d.FileACL = old.FileACL
	if fresh {
		i.d.FileACL = d.FileACL
	}
	switch {
	case i.inline() || i.d.IsLink() && i.noBlocks() || !i.d.IsReg() && !i.d.IsDir() && !i.d.IsLink():
		// i_block is the content, and the body has the rest of it.
		if !fresh {
			kept := i.d
			i.d = old
			if err := f.removeTree(i); err != nil {
				return err
			}
			i.d = kept
		}
	case fresh || old.Flags&disk.FlInlineData != 0:
		clear(i.d.Block[:])
		if d.Flags&disk.FlExtents != 0 {
			extent.Format(i.d.Block[:])
		}
	default:
		i.d.Block = old.Block
		i.d.Flags = i.d.Flags&^(disk.FlExtents|disk.FlHugeFile) | old.Flags&(disk.FlExtents|disk.FlHugeFile)
	}
	if i.d.IsDir() && !i.inline() {
		i.d.Size, i.d.Flags = old.Size, i.d.Flags&^disk.FlIndex|old.Flags&disk.FlIndex
		if fresh {
			i.d.Size, i.d.Flags = 0, i.d.Flags&^disk.FlIndex
		}
	}
	i.d.RawBlocks = old.RawBlocks
	if fresh {
		i.d.RawBlocks = 0
		i.d.Flags &^= disk.FlHugeFile
		if i.d.FileACL != 0 {
			i.addBlocks(1)
		}
	}
	if err := f.slot(i, r.Raw, fresh); err != nil {
		return err
	}
	if !fresh && old.Flags&disk.FlInlineData != 0 && !i.inline() {
		c, err := i.inlineContent()
		if err != nil {
			return err
		}
		return c.drop(f.o) // it has a block now
	}
	return nil
}

// slot writes the inode and what the record has of its body.
func (f *fastCommits) slot(i *Inode, raw []byte, fresh bool) error {
	err := f.o.changeSlot(i, func(slot []byte) {
		if fresh {
			clear(slot)
		}
		if n := disk.InodeSizeRev0 + int(i.d.ExtraIsize); len(raw) > n && len(slot) > n {
			copy(slot[n:], raw[n:])
		}
	})
	if err != nil {
		return err
	}
	return i.store(f.o)
}

// newInode takes inode number ino for a file that the records made.
func (f *fastCommits) newInode(ino uint32, d *disk.Inode) (*Inode, error) {
	v := f.v
	if _, err := v.alloc.ClaimInode(f.o.h, ino, d.IsDir()); err != nil {
		return nil, err
	}
	i := v.blank(ino)
	i.once.Do(func() {})
	i.refs = 1
	v.inodes.enter(i)
	f.inodes[ino] = i
	return i, nil
}

// empty lets go of all that an inode has, but for its number, which a directory has next or something else.
func (f *fastCommits) empty(i *Inode, isDir bool) error {
	if err := f.removeTree(i); err != nil {
		return err
	}
	if err := i.freeXattrs(f.o); err != nil {
		return err
	}
	delete(f.dirs, i)
	i.dir.Store(nil)
	if err := f.v.alloc.FreeInode(f.o.h, i.ino, i.d.IsDir()); err != nil {
		return err
	}
	_, err := f.v.alloc.ClaimInode(f.o.h, i.ino, isDir)
	return err
}

// removeTree takes its blocks from an inode.
func (f *fastCommits) removeTree(i *Inode) error {
	if !i.hasBlocks() {
		return nil
	}
	return f.unmap(i, 0, extent.MaxBlock)
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

// name makes or removes a name. It may have been made or removed already.
func (f *fastCommits) name(r jbd2.FCName) error {
	name := string(r.Name)
	if err := checkName(name); err != nil {
		return disk.Corrupt("fast commits", "name %q: %v", name, err)
	}
	parent, err := f.get(r.Parent)
	if err != nil || parent == nil {
		return err
	}
	i, err := f.get(r.Ino)
	if err != nil || i == nil {
		return err
	}
	if !parent.d.IsDir() || parent == i {
		return disk.Corrupt("fast commits", "name %q in inode %d, which is no directory for it", name, parent.ino)
	}
	have, _, err := parent.dirLookup(name)
	if err != nil && !errors.Is(err, ErrNotExist) {
		return err
	}
	now := time.Now()
	if r.Tag == jbd2.FCUnlinkTag {
		if have != i.ino {
			return nil
		}
		if err := parent.dirRemove(f.o, name); err != nil {
			return err
		}
		if i.d.IsDir() {
			f.dirs[parent] = true
			i.d.LinksCount = 0
		} else if i.d.LinksCount > 0 {
			i.d.LinksCount--
		}
		parent.touch(now)
		return errors.Join(i.store(f.o), parent.store(f.o))
	}
	if r.Tag == jbd2.FCCreatTag && i.d.IsDir() && !i.inline() && i.d.Size == 0 {
		if err := i.dirInit(f.o, parent.ino); err != nil {
			return err
		}
	}
	if have != 0 {
		return nil
	}
	if err := parent.dirInsert(f.o, name, i.ino, i.d.Mode); err != nil {
		return err
	}
	switch {
	case i.d.IsDir():
		f.dirs[parent], f.dirs[i] = true, true
	case r.Tag == jbd2.FCCreatTag:
		i.d.LinksCount = max(i.d.LinksCount, 1)
	default:
		i.d.LinksCount++
	}
	parent.touch(now)
	return errors.Join(i.store(f.o), parent.store(f.o))
}

// finish brings the bitmaps up to date, and lists who has to go.
func (f *fastCommits) finish() error {
	var used blockSet
	for _, i := range f.inodes {
		if !i.hasBlocks() {
			continue
		}
		err := i.tree(f.o).Walk(func(b jbd2.Block, _ int) error {
			if b != 0 {
				used.add(b, 1)
			}
			return nil
		}, func(x extent.Extent) error {
			used.add(x.Pblk, x.Len)
			return nil
		})
		if err != nil {
			return err
		}
	}
	each := func(s blockSet, do func(b jbd2.Block, n uint32) error) error {
		for _, r := range s {
			if err := do(r.from, uint32(r.to-r.from)); err != nil {
				return err
			}
		}
		return nil
	}
	err := each(append(f.claimed, f.removed...).minus(used), func(b jbd2.Block, n uint32) error {
		return f.v.alloc.Free(f.o.h, b, n)
	})
	if err != nil {
		return err
	}
	err = each(used.normal(), func(b jbd2.Block, n uint32) error { return f.v.alloc.Claim(f.o.h, b, n, nil) })
	if err != nil {
		return err
	}
	for i := range f.dirs {
		if err := f.countDirs(i); err != nil {
			return err
		}
	}
	for _, i := range f.inodes {
		if i.d.LinksCount > 0 || i.orphan.kind != 0 {
			continue
		}
		if err := f.v.addOrphan(f.o, i); err != nil {
			return err
		}
		if err := i.store(f.o); err != nil {
			return err
		}
		f.orphans = append(f.orphans, i.Ref())
	}
	return nil
}

// countDirs sets the link count of a directory from what is in it: the records have the count of some directories and
// not of others.
func (f *fastCommits) countDirs(i *Inode) error {
	if i.d.LinksCount == 0 {
		return nil
	}
	e, err := i.entries()
	if err != nil {
		return err
	}
	n := 0
	var unknown []uint32
	err = e.Read(0, func(e dir.Entry, _ uint64) bool {
		switch {
		case e.Type == dir.FTDir:
			n++
		case e.Type == dir.FTUnknown:
			unknown = append(unknown, e.Ino)
		}
		return true
	})
	if err != nil {
		return err
	}
	for _, ino := range unknown {
		c, err := f.v.get(ino)
		if err != nil {
			return err
		}
		if c.d.IsDir() {
			n++
		}
		c.Put()
	}
	if n > maxLinks {
		n = 1
	}
	i.d.LinksCount = uint16(n)
	return i.store(f.o)
}
