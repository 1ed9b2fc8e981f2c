package ext4

import (
	"errors"
	"fmt"

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

// replayFastCommits replays them, and returns the orphans with those that this adds.
func (j *Journal) replayFastCommits(orphans []*Inode) ([]*Inode, error) {
	v, f := j.v, j.fast
	if f == nil {
		return orphans, nil
	}
	j.fast = nil
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
		if i.d.LinksCount > 0 || i.isOrphan() {
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
