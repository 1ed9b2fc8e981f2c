package recovery

import (
	"fmt"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/latency"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/internal/contents"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// Journal is the journal of the volume as this mount found it.
type Journal struct {
	v       *volume.FS
	ino     *volume.Inode  // nil without a journal
	log     *jbd2.Log      // nil without one
	pending *jbd2.Recovery // has fast commits that are not replayed yet; nil when there are none
	fast    *fastCommits   // to be replayed before the mount is done
	found   JournalState
}

// recover recovers what an earlier mount left in the log. It comes before everything else that looks at metadata, for the
// log may hold newer copies of it.
func (j *Journal) recover() (err error) {
	v := j.v
	if !v.Super.FeatureCompat.Has(disk.CompatHasJournal) {
		if v.Super.FeatureIncompat.Has(disk.IncompatRecover) {
			err = v.Note(disk.Corrupt("superblock", "has needs_recovery without has_journal"))
		}
		return err
	}
	if v.Super.JournalInum == 0 {
		return fmt.Errorf("the journal is on an external device, that with the UUID %s, which LaneFS does not support; mount it with the kernel's ext4", uuidText(v.Super.JournalUUID))
	}
	if err = j.openLog(); err != nil {
		return fmt.Errorf("journal: %w", v.Note(err))
	}
	if j.pending, err = j.replay(); err != nil {
		return fmt.Errorf("recovering the journal: %w", v.Note(err))
	}
	return nil
}

// marked says whether the journal has the mark of an error that an earlier mount met.
func (j *Journal) marked() bool { return j.log != nil && j.log.Info().Errno != 0 }

// open opens the journal for the changes of this mount.
func (j *Journal) open() (err error) {
	v := j.v
	cfg := jbd2.Config{
		Interval:            v.Opt.CommitInterval,
		Log:                 v.Opt.Log,
		BeforeCommit:        v.BeforeCommit,
		BeforeCommitCredits: 1,
		Home:                func(done, total int) { v.Tell(volume.WorkHome, done, total) },
		Measure:             func() latency.Op { return v.Times.Start(volume.TimeCommit) },
	}
	if j.log == nil || !v.Writable() { // read-only: no handle is begun
		v.Journal, err = jbd2.OpenInPlace(v.Cache, cfg)
		return err
	}
	sum := jbd2.ChecksumNone
	if v.Super.MetadataCsum() {
		sum = jbd2.ChecksumV3
	}
	wide := v.Super.FeatureIncompat.Has(disk.Incompat64Bit)
	if j.pending != nil {
		if j.fast, err = readFastCommits(v, j.pending); err != nil {
			return err
		}
		v.Journal, err = j.pending.Resume(cfg, sum, wide)
	} else {
		v.Journal, err = j.log.Start(cfg, sum, wide)
	}
	v.Logged = err == nil
	return err
}

// replay brings the volume to what was last committed: on the medium, or for a read-only mount only in what the cache
// shows. It leaves fast commits to open, and returns the recovery that has them.
func (j *Journal) replay() (*jbd2.Recovery, error) {
	v := j.v
	j.note(nil)
	if v.Opt.NoRecovery && !v.Writable() {
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
	if !v.Super.FeatureIncompat.Has(disk.IncompatRecover) {
		v.Opt.Log.Warn("the journal is not empty, but the superblock does not ask for recovery: recovered all the same")
	}
	fast, err := r.HasFastCommits()
	if err != nil {
		return nil, err
	}
	if !v.Writable() {
		v.Cache.SetOverlay(r.Overlay())
		v.Opt.Log.Info("the mount is read-only: transactions of the journal are shown, not written", "transactions", r.Transactions)
		if fast {
			v.Opt.Log.Warn("fast commits in the journal are not shown: what was done last appears after a mount that may write")
		}
	} else {
		tell := func(done, total int) { v.Tell(volume.WorkReplay, done, total) }
		if err := r.Replay(tell, disk.Block(v.Super.SuperBlockNo())); err != nil {
			return nil, err
		}
		if err := replaySuper(v, r.Overlay()); err != nil {
			return nil, err
		}
		v.Opt.Log.Info("the journal was recovered", "transactions", r.Transactions, "blocks", r.Blocks())
	}
	v.Cache.Invalidate()
	if err := v.ReloadSuper(); err != nil {
		return nil, err
	}
	if !v.Writable() {
		return nil, nil
	}
	if fast {
		return r, nil
	}
	return nil, r.Finish()
}

// replaySuper writes home what the log has of the superblock. It has a checksum of its own there, and a power cut
// between its two sectors would leave a volume that no driver opens: see disk.Superblock.EncodeStable.
func replaySuper(v *volume.FS, log *jbd2.Overlay) error {
	block := disk.Block(v.Super.SuperBlockNo())
	buf, err := v.Dev.Alloc(v.BlockSize, blockdev.ForBlock)
	if err != nil {
		return err
	}
	defer buf.Release()
	s := buf.Slice(0, v.BlockSize)
	if found, err := log.Read(block, s); err != nil || !found {
		return err
	}
	b := s.Bytes()[disk.SuperblockOffset&(v.BlockSize-1):]
	sb, err := disk.DecodeSuperblock(b)
	if err != nil {
		return err
	}
	if err := sb.VerifyChecksum(); err != nil {
		return err
	}
	sb.Checksum = v.Super.Checksum
	volume.KeepErrors(sb, v.Super)
	sb.EncodeStable(b)
	return v.SendSuper(s)
}

// protect keeps the journal's blocks out of every file.
func (j *Journal) protect() error {
	if j.ino == nil {
		return nil
	}
	v := j.v
	return contents.Tree(j.ino, nil).Walk(func(b disk.Block, _ int) error {
		if b == 0 {
			return nil
		}
		return v.Alloc.Protect(b, 1)
	}, func(x extent.Extent) error {
		return v.Alloc.Protect(x.Pblk, x.Len)
	})
}
