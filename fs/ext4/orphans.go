package ext4

import (
	"fmt"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// readOrphans finds what an earlier mount left to be finished, and learns the places of the orphan file. Beside an error it
// returns what was found before it.
func (v *FS) readOrphans() ([]*Inode, error) {
	todo, err := v.readOrphanFile()
	if err != nil {
		return todo, err
	}
	list, err := v.readOrphanList()
	return append(todo, list...), err
}

// leaveOrphans leaves it to e2fsck, since what else is to be finished cannot be known.
func (v *FS) leaveOrphans(found []*Inode, why error) {
	v.setDoubt(fmt.Sprintf("is damaged (%v)", why))
	for _, i := range found {
		i.Put()
	}
}

// finishOrphans finishes it. What fails stays on the list, is said in the log, and does not keep the volume from being mounted.
func (v *FS) finishOrphans(todo []*Inode) error {
	if len(todo) == 0 {
		return nil
	}
	deleted := 0
	for _, i := range todo {
		if i.d.LinksCount == 0 {
			deleted++
		}
		i.shortens = i.d.LinksCount > 0
		i.Put()
	}
	if left := v.unfinishedCount(); left > 0 {
		v.opt.Logf("%s: of %d deletions and truncations of the last mount %d could not be finished", v.name(), len(todo), left)
	} else {
		v.opt.Logf("%s: finished %d deletions and %d truncations of the last mount", v.name(), deleted, len(todo)-deleted)
	}
	return v.jnl.Commit()
}

// readOrphanFile maps the orphan file and collects who is in it.
func (v *FS) readOrphanFile() ([]*Inode, error) {
	if !v.sb.FeatureCompat.Has(disk.CompatOrphanFile) {
		return nil, nil
	}
	fi, err := v.get(v.sb.OrphanFileInum)
	if err != nil {
		return nil, err
	}
	defer fi.Put()
	if !fi.d.IsReg() || fi.d.Size > 512<<20 || fi.d.Flags&disk.FlInlineData != 0 {
		return nil, disk.Corrupt(fmt.Sprintf("orphan file, inode %d", fi.Ino()), "is no file of at most 512 MiB")
	}
	var blocks []jbd2.Block
	err = fi.mapRange(0, v.logical(int64(fi.d.Size)), func(x extent.Extent) error {
		if x.Hole() {
			return disk.Corrupt("orphan file", "block %d is a hole", x.Lblk)
		}
		for k := range x.Len {
			blocks = append(blocks, x.Pblk+jbd2.Block(k))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return v.useOrphanFile(disk.InodeSeed(v.seed, fi.Ino(), fi.d.Generation), blocks)
}
