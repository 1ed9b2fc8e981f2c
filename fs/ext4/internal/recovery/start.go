package recovery

import (
	"errors"

	"github.com/lanefs/lanefs/fs/ext4/alloc"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// Start brings a volume into use whose superblock is read:
//
//  1. the log of an earlier mount is replayed; for a read-only mount the cache shows it
//  2. the groups are read, and the journal's blocks kept out of files
//  3. the journal is opened for this mount's changes
//  4. the root is looked at, and the orphans are read
//  5. the superblock says from now on that the volume is in use
//  6. fast commits are replayed
//  7. orphans are freed, and truncations finished
//
// A read-only mount ends with the root. What is damaged makes a mount read-only where reading can go on.
func Start(v *volume.FS) (*Journal, error) {
	j := &Journal{v: v}
	if err := j.start(); err != nil {
		if v.Journal != nil {
			v.Journal.Stop(err) // what is not committed is left to the next mount, and no word of an error
		}
		if end := v.Abandon(); !errors.Is(end, jbd2.ErrAborted) {
			err = errors.Join(err, end)
		}
		return nil, v.WithRemedy(err)
	}
	v.Mounted = true
	return j, nil
}

func (j *Journal) start() (err error) {
	v := j.v
	if err := j.recover(); err != nil {
		return err
	}
	if v.Alloc, err = alloc.New(v.Super, v.Cache); err != nil {
		return v.Note(err)
	}
	v.PassOver()
	damage := v.Alloc.Damage()
	if damage == nil {
		if damage = j.protect(); damage != nil && !volume.IsCorrupt(damage) {
			return damage // what can't be read is not damaged by that
		}
	}
	v.RequireChecked(j.marked(), damage)
	if err := j.open(); err != nil {
		return err
	}
	root, err := v.Root()
	if err != nil {
		return err
	}
	defer root.Put()
	if !root.Disk.IsDir() {
		return v.Note(disk.Corrupt("inode 2", "the root is not a directory"))
	}
	if v.ReadOnly() {
		return nil
	}
	orphans, err := readOrphans(v)
	if volume.IsCorrupt(err) {
		leaveOrphans(v, orphans, err)
		return nil
	}
	if err != nil {
		return err
	}
	if err := v.MarkMounted(); err != nil {
		return err
	}
	if orphans, err = j.replayFastCommits(orphans); err != nil {
		return v.Note(err)
	}
	v.StartDiscard()
	return finishOrphans(v, orphans)
}
