package recovery

import (
	"fmt"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/internal/contents"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
)

// readOrphans finds what an earlier mount left to be finished, and learns the places of the orphan file. With an error it
// returns what was found before it.
func readOrphans(v *volume.FS) ([]*volume.Inode, error) {
	todo, err := readOrphanFile(v)
	if err != nil {
		return todo, err
	}
	list, err := v.ReadOrphanList()
	return append(todo, list...), err
}

// leaveOrphans leaves the orphans to e2fsck and the volume read-only: with a damaged list it is not known which there are.
func leaveOrphans(v *volume.FS, found []*volume.Inode, why error) {
	v.RequireFsck(fmt.Sprintf("is damaged (%v)", why))
	for _, i := range found {
		i.Put()
	}
}

// finishOrphans frees and truncates what readOrphans has found. What fails stays on the list, is logged, and does not fail the
// mount.
func finishOrphans(v *volume.FS, todo []*volume.Inode) error {
	if len(todo) == 0 {
		return nil
	}
	deleted := 0
	for n, i := range todo {
		if i.Disk.LinksCount == 0 {
			deleted++
		}
		i.Shortens = i.Disk.LinksCount > 0
		i.Put()
		v.Tell(volume.WorkOrphans, n+1, len(todo))
	}
	if left := v.UnfinishedCount(); left > 0 {
		v.Opt.Log.Warn("deletions and truncations of the last mount could not all be finished", "all", len(todo), "left", left)
	} else {
		v.Opt.Log.Info("deletions and truncations of the last mount were finished", "deletions", deleted, "truncations", len(todo)-deleted)
	}
	if err := v.Journal.Commit(); err != nil {
		return fmt.Errorf("finishing deletions and truncations of the last mount: %w", err)
	}
	return nil
}

// readOrphanFile maps the orphan file and collects the inodes in it.
func readOrphanFile(v *volume.FS) ([]*volume.Inode, error) {
	if !v.Super.FeatureCompat.Has(disk.CompatOrphanFile) {
		return nil, nil
	}
	fi, err := v.Get(v.Super.OrphanFileInum)
	if err != nil {
		return nil, err
	}
	defer fi.Put()
	if !fi.Disk.IsReg() || fi.Disk.Size > 512<<20 || fi.Disk.Flags&disk.FlInlineData != 0 {
		return nil, disk.Corrupt(fmt.Sprintf("orphan file, inode %d", fi.Ino()), "is no file of at most 512 MiB")
	}
	var blocks []disk.Block
	err = contents.MapRange(fi, 0, v.Logical(int64(fi.Disk.Size)), func(x extent.Extent) error {
		if x.Hole() {
			return disk.Corrupt("orphan file", "block %d is a hole", x.Lblk)
		}
		for k := range x.Len {
			blocks = append(blocks, x.Pblk+disk.Block(k))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return v.UseOrphanFile(disk.InodeSeed(v.Seed, fi.Ino(), fi.Disk.Generation), blocks)
}
