package contents

import (
	"errors"

	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
)

// Values of whence for Seek, as in lseek(2).
const (
	SeekData = 3
	SeekHole = 4
)

// Seek finds where data or a hole begins at or after off. Unwritten extents are holes: they hold nothing.
func Seek(i *volume.Inode, off int64, whence int) (_ int64, err error) {
	defer i.FS.NoteTo(&err)
	i.Mu.RLock()
	defer i.Mu.RUnlock()
	size := i.ReadEnd()
	switch {
	case whence != SeekData && whence != SeekHole:
		return 0, volume.ErrInvalid
	case off < 0 || off >= size:
		return 0, volume.ErrNoData
	case !i.Disk.IsReg():
		return 0, notRegular(i)
	case i.IsInline():
		if whence == SeekData {
			return off, nil
		}
		return size, nil
	}
	found := int64(-1)
	stop := errors.New("found")
	first, end := blocksOver(i, off, size)
	err = MapRange(i, first, end, func(x extent.Extent) error {
		if data := !x.Hole() && !x.Unwritten; data == (whence == SeekData) {
			found = max(off, int64(x.Lblk)<<i.FS.BlockBits)
			return stop
		}
		return nil
	})
	switch {
	case err != nil && !errors.Is(err, stop):
		return 0, err
	case found >= 0:
		return min(found, size), nil
	case whence == SeekHole:
		return size, nil
	}
	return 0, volume.ErrNoData
}
