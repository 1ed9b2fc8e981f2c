package contents

import (
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
)

// FreeExtents calls f with the length in blocks of every run of free blocks, across groups.
func FreeExtents(v *volume.FS, f func(n uint64)) error {
	var start, end uint64
	err := v.Alloc.FreeRuns(func(b disk.Block, n uint32) {
		if uint64(b) != end && end > start {
			f(end - start)
		}
		if uint64(b) != end {
			start = uint64(b)
		}
		end = uint64(b) + uint64(n)
	})
	if end > start {
		f(end - start)
	}
	return err
}

// FileExtents calls f with every file and directory that has blocks, and in how many pieces they lie. Between two of
// them it calls progress with how many of all inodes in use are done, and ends when that reports false. What cannot be
// read is passed to f as an error.
func FileExtents(v *volume.FS, f func(ino uint32, blocks uint64, pieces int, err error), progress func(done, total uint64) bool) error {
	total := uint64(v.Super.InodesCount) - v.Alloc.FreeInodes()
	done := uint64(0)
	return v.Alloc.InodesInUse(func(ino uint32) bool {
		if ino == disk.InoRoot || ino >= v.Super.FirstIno && ino != orphanFile(v) {
			blocks, pieces, err := countPieces(v, ino)
			if pieces > 0 || err != nil {
				f(ino, blocks, pieces, err)
			}
		}
		done++
		return progress(done, max(total, done))
	})
}

// orphanFile is the inode of the orphan file, 0 if there is none.
func orphanFile(v *volume.FS) uint32 {
	if !v.Super.FeatureCompat.Has(disk.CompatOrphanFile) {
		return 0
	}
	return v.Super.OrphanFileInum
}

// countPieces counts the runs of blocks that lie apart on the volume. Errors are returned, not noted: the volume stays as it is.
func countPieces(v *volume.FS, ino uint32) (blocks uint64, pieces int, err error) {
	i, err := v.Get(ino)
	if err != nil {
		return 0, 0, err
	}
	defer i.Put()
	i.Mu.RLock()
	defer i.Mu.RUnlock()
	if !i.HasBlocks() || i.Disk.LinksCount == 0 {
		return 0, 0, nil
	}
	next := disk.Block(0)
	err = Tree(i, nil).Walk(nil, func(x extent.Extent) error {
		if x.Pblk != next {
			pieces++
		}
		next = x.Pblk + disk.Block(x.Len)
		blocks += uint64(x.Len)
		return nil
	})
	return blocks, pieces, err
}
