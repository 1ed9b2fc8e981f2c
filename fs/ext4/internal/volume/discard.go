package volume

import (
	"fmt"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// Discarding tells the device which blocks hold nothing.

// StartDiscard has blocks discarded when their freeing is durable, if the mount asks for it.
func (v *FS) StartDiscard() {
	if !v.Opt.Discard || !v.Writable() {
		return
	}
	if !v.Dev.Info().Discard {
		v.Opt.Log.Warn("the device does not discard: the option discard does nothing")
		return
	}
	said := false // one commit at a time
	v.Alloc.SetDiscard(func(start disk.Block, n uint32) {
		if err := v.discard(start, n); err != nil && !said {
			said = true
			v.Opt.Log.Warn("discarding freed blocks failed; fstrim does it later", "error", err)
		}
	})
}

func (v *FS) discard(start disk.Block, n uint32) error {
	return v.Dev.Discard(blockdev.Bytes(start)<<v.BlockBits, blockdev.Bytes(n)<<v.BlockBits)
}

// Trim discards the free blocks in length bytes from start, in runs of at least least bytes, and returns how many bytes
// that were: FITRIM of ioctl(2).
func (v *FS) Trim(start, length, least uint64) (trimmed uint64, err error) {
	defer v.NoteTo(&err)
	bs := uint64(v.BlockSize)
	switch {
	case !v.Dev.Info().Discard:
		return 0, fmt.Errorf("the device does not discard: %w", ErrNotSup)
	case !v.Writable():
		return 0, ErrReadOnly
	case start>>v.BlockBits >= v.Super.BlocksCount, length < bs, least>>v.BlockBits > uint64(v.Super.BlocksPerGroup):
		return 0, ErrInvalid
	}
	// Blocks that were freed but not durably are not free yet.
	if err := v.Journal.Commit(); err != nil {
		return 0, err
	}
	from := (start + bs - 1) >> v.BlockBits
	to := v.Super.BlocksCount
	if end := start + length; end >= start {
		to = min(to, end>>v.BlockBits)
	}
	n, err := v.Alloc.Trim(disk.Block(from), disk.Block(to), uint32((least+bs-1)>>v.BlockBits), v.discard)
	return n << v.BlockBits, err
}
