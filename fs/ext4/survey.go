package ext4

import (
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// FreeExtents calls f with the length in blocks of every run of free blocks, across groups.
func (v *FS) FreeExtents(f func(n uint64)) error {
	var start, end uint64
	err := v.alloc.FreeRuns(func(b jbd2.Block, n uint32) {
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
func (v *FS) FileExtents(f func(ino uint32, blocks uint64, pieces int, err error), progress func(done, total uint64) bool) error {
	total := uint64(v.sb.InodesCount) - v.alloc.FreeInodes()
	done := uint64(0)
	return v.alloc.InodesInUse(func(ino uint32) bool {
		if ino == disk.InoRoot || ino >= v.sb.FirstIno && ino != v.orphanFile() {
			blocks, pieces, err := v.countPieces(ino)
			if pieces > 0 || err != nil {
				f(ino, blocks, pieces, err)
			}
		}
		done++
		return progress(done, max(total, done))
	})
}

// orphanFile is the inode of the orphan file, 0 if there is none.
func (v *FS) orphanFile() uint32 {
	if !v.sb.FeatureCompat.Has(disk.CompatOrphanFile) {
		return 0
	}
	return v.sb.OrphanFileInum
}

// countPieces counts the runs of blocks that lie apart on the volume. Errors are not noted: to look is not to stumble.
func (v *FS) countPieces(ino uint32) (blocks uint64, pieces int, err error) {
	i, err := v.get(ino)
	if err != nil {
		return 0, 0, err
	}
	defer i.Put()
	i.mu.RLock()
	defer i.mu.RUnlock()
	if !i.hasBlocks() || i.d.LinksCount == 0 {
		return 0, 0, nil
	}
	next := jbd2.Block(0)
	err = i.tree(nil).Walk(nil, func(x extent.Extent) error {
		if x.Pblk != next {
			pieces++
		}
		next = x.Pblk + jbd2.Block(x.Len)
		blocks += uint64(x.Len)
		return nil
	})
	return blocks, pieces, err
}
