package ext4

import (
	"errors"

	"github.com/lanefs/lanefs/fs/ext4/extent"
)

// Values of whence for Seek, as in lseek(2).
const (
	SeekData = 3
	SeekHole = 4
)

// Seek finds where data or a hole begins at or after off. Unwritten extents are holes: they hold nothing.
func (i *Inode) Seek(off int64, whence int) (_ int64, err error) {
	defer i.fs.noteTo(&err)
	i.mu.RLock()
	defer i.mu.RUnlock()
	size := i.end()
	switch {
	case whence != SeekData && whence != SeekHole:
		return 0, ErrInvalid
	case off < 0 || off >= size:
		return 0, ErrNoData
	case !i.d.IsReg():
		return 0, i.notRegular()
	case i.inline():
		if whence == SeekData {
			return off, nil
		}
		return size, nil
	}
	found := int64(-1)
	stop := errors.New("found")
	first, end := i.blocksOver(off, size)
	err = i.mapRange(first, end, func(x extent.Extent) error {
		if data := !x.Hole() && !x.Unwritten; data == (whence == SeekData) {
			found = max(off, int64(x.Lblk)<<i.fs.bits)
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
	return 0, ErrNoData
}
