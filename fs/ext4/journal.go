package ext4

import (
	"fmt"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// Journal is the journal of the volume as this mount found it.
type Journal struct {
	v       *FS
	ino     *Inode         // nil without a journal
	log     *jbd2.Log      // nil without one
	pending *jbd2.Recovery // has fast commits that are not replayed yet; nil when there are none
	fast    *fastCommits   // to be replayed before the mount is done
	found   JournalState
}

// recover recovers what an earlier mount left in the log. It comes before everything else that looks at metadata, for the
// log may hold newer copies of it.
func (j *Journal) recover() (err error) {
	v := j.v
	if !v.sb.FeatureCompat.Has(disk.CompatHasJournal) {
		if v.sb.FeatureIncompat.Has(disk.IncompatRecover) {
			err = v.note(disk.Corrupt("superblock", "has needs_recovery without has_journal"))
		}
		return err
	}
	if v.sb.JournalInum == 0 {
		return fmt.Errorf("%s: the journal is on an external device, that with the UUID %s, which LaneFS does not support", v.name(), uuidText(v.sb.JournalUUID))
	}
	if err = j.openLog(); err != nil {
		return fmt.Errorf("%s: journal: %w", v.name(), v.note(err))
	}
	if j.pending, err = j.replay(); err != nil {
		return fmt.Errorf("%s: recovering the journal: %w", v.name(), v.note(err))
	}
	return nil
}

// marked says whether the journal has the mark of an error that an earlier mount met.
func (j *Journal) marked() bool { return j.log != nil && j.log.Info().Errno != 0 }

// open opens the journal for the changes of this mount.
func (j *Journal) open() (err error) {
	v := j.v
	cfg := jbd2.Config{
		Interval:            v.opt.CommitInterval,
		Logf:                func(f string, args ...any) { v.opt.Logf(v.name()+": "+f, args...) },
		BeforeCommit:        v.beforeCommit,
		BeforeCommitCredits: 1,
	}
	if j.log == nil || !v.writable() { // read-only, nobody begins a handle
		v.jnl, err = jbd2.OpenInPlace(v.cache, cfg)
		return err
	}
	sum := jbd2.ChecksumNone
	if v.sb.MetadataCsum() {
		sum = jbd2.ChecksumV3
	}
	wide := v.sb.FeatureIncompat.Has(disk.Incompat64Bit)
	if j.pending != nil {
		if j.fast, err = v.readFastCommits(j.pending); err != nil {
			return err
		}
		v.jnl, err = j.pending.Resume(cfg, sum, wide)
	} else {
		v.jnl, err = j.log.Start(cfg, sum, wide)
	}
	v.logged = err == nil
	return err
}

// replay brings the volume to what was last committed: on the medium, or for a read-only mount only in what the cache
// shows. It leaves fast commits to open, and returns the recovery that has them.
func (j *Journal) replay() (*jbd2.Recovery, error) {
	v := j.v
	j.note(nil)
	if v.opt.NoRecovery && !v.writable() {
		return nil, nil
	}
	r, err := j.log.Scan()
	if err != nil {
		return nil, err
	}
	j.note(r)
	if !r.Needed() {
		return nil, nil
	}
	if !v.sb.FeatureIncompat.Has(disk.IncompatRecover) {
		v.opt.Logf("%s: the journal is not empty, but the superblock does not ask for recovery: recovered all the same", v.name())
	}
	fast, err := r.HasFastCommits()
	if err != nil {
		return nil, err
	}
	if !v.writable() {
		v.cache.SetOverlay(r.Overlay())
		v.opt.Logf("%s: %d transactions of the journal are shown, not written: the mount is read-only", v.name(), r.Transactions)
		if fast {
			v.opt.Logf("%s: fast commits in the journal are not shown: what was done last appears after a mount that may write", v.name())
		}
	} else {
		if err := r.Replay(jbd2.Block(v.sb.SuperBlockNo())); err != nil {
			return nil, err
		}
		if err := v.replaySuper(r.Overlay()); err != nil {
			return nil, err
		}
		v.opt.Logf("%s: recovered %d transactions, %d blocks, from the journal", v.name(), r.Transactions, r.Blocks())
	}
	v.cache.Invalidate()
	if err := v.reloadSuper(); err != nil {
		return nil, err
	}
	if !v.writable() {
		return nil, nil
	}
	if fast {
		return r, nil
	}
	return nil, r.Finish()
}

// replaySuper writes home what the log has of the superblock. Whoever logged it gave it a checksum of its own, and a power
// cut between its two sectors would leave a volume that nobody opens: see disk.Superblock.EncodeStable.
func (v *FS) replaySuper(log *jbd2.Overlay) error {
	block := jbd2.Block(v.sb.SuperBlockNo())
	buf, err := v.dev.Alloc(v.bs, blockdev.ForBlock)
	if err != nil {
		return err
	}
	defer buf.Release()
	s := buf.Slice(0, v.bs)
	if found, err := log.Read(block, s); err != nil || !found {
		return err
	}
	b := s.Bytes()[disk.SuperblockOffset&(v.bs-1):]
	sb, err := disk.DecodeSuperblock(b)
	if err != nil {
		return err
	}
	if err := sb.VerifyChecksum(); err != nil {
		return err
	}
	sb.Checksum = v.sb.Checksum
	keepErrors(sb, v.sb)
	sb.EncodeStable(b)
	return v.sendSuper(s)
}

// protect keeps the journal's blocks out of every file.
func (j *Journal) protect() error {
	if j.ino == nil {
		return nil
	}
	v := j.v
	return j.ino.tree(nil).Walk(func(b jbd2.Block, _ int) error {
		if b == 0 {
			return nil
		}
		return v.alloc.Protect(b, 1)
	}, func(x extent.Extent) error {
		return v.alloc.Protect(x.Pblk, x.Len)
	})
}
