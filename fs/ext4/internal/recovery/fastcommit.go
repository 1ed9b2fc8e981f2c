package recovery

import (
	"errors"
	"fmt"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/internal/contents"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
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
	v    *volume.FS
	recs []jbd2.FCRecord

	o       *volume.Op
	inodes  map[uint32]*volume.Inode // touched, referenced
	orphans []*volume.Inode          // as the volume's own lists have them
	dirs    map[*volume.Inode]bool   // whose subdirectories changed
	claimed blockSet                 // free before, and given to files by the records
	removed blockSet                 // taken from files
}

// readFastCommits collects the records.
func readFastCommits(v *volume.FS, r *jbd2.Recovery) (*fastCommits, error) {
	f := &fastCommits{v: v, inodes: map[uint32]*volume.Inode{}, dirs: map[*volume.Inode]bool{}}
	err := r.FastCommits(func(rec jbd2.FCRecord) error {
		f.recs = append(f.recs, rec)
		return nil
	})
	return f, err
}

// replayFastCommits replays them, and returns the orphans with those that this adds.
func (j *Journal) replayFastCommits(orphans []*volume.Inode) ([]*volume.Inode, error) {
	v, f := j.v, j.fast
	if f == nil {
		return orphans, nil
	}
	j.fast = nil
	f.orphans = orphans
	err := v.Change(nil, func(o *volume.Op) error {
		return o.Once(v.Journal.MaxCredits(), func() error {
			f.o = o
			err := f.replay()
			if err == nil {
				err = o.Handle.Fits()
			}
			if errors.Is(err, jbd2.ErrTooLarge) {
				err = fmt.Errorf("%w: nothing was changed; let e2fsck replay them", err)
			}
			if err != nil && !volume.IsCorrupt(err) {
				v.Journal.Stop(err) // before the handle ends: the records stay
			}
			return err
		})
	})
	if err == nil {
		err = v.Journal.Commit()
	}
	if err != nil {
		v.Journal.Stop(err)
		return f.orphans, fmt.Errorf("replaying fast commits: %w", err)
	}
	v.Opt.Log.Info("fast commits were replayed", "records", len(f.recs))
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
		if err := f.v.Alloc.Claim(f.o.Handle, x.Pblk, x.Len, f.claimed.add); err != nil {
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

// finish brings the bitmaps up to date, and lists the inodes that have to go.
func (f *fastCommits) finish() error {
	var used blockSet
	for _, i := range f.inodes {
		if !i.HasBlocks() {
			continue
		}
		err := contents.Tree(i, f.o).Walk(func(b disk.Block, _ int) error {
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
	each := func(s blockSet, do func(b disk.Block, n uint32) error) error {
		for _, r := range s {
			if err := do(r.from, uint32(r.to-r.from)); err != nil {
				return err
			}
		}
		return nil
	}
	err := each(append(f.claimed, f.removed...).minus(used), func(b disk.Block, n uint32) error {
		return f.v.Alloc.Free(f.o.Handle, b, n)
	})
	if err != nil {
		return err
	}
	err = each(used.normal(), func(b disk.Block, n uint32) error { return f.v.Alloc.Claim(f.o.Handle, b, n, nil) })
	if err != nil {
		return err
	}
	for i := range f.dirs {
		if err := f.countDirs(i); err != nil {
			return err
		}
	}
	for _, i := range f.inodes {
		if i.Disk.LinksCount > 0 || i.IsOrphan() {
			continue
		}
		if err := f.v.AddOrphan(f.o, i); err != nil {
			return err
		}
		if err := i.Store(f.o); err != nil {
			return err
		}
		f.orphans = append(f.orphans, i.Ref())
	}
	return nil
}
