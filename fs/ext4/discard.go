package ext4

import (
	"fmt"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// This file is about blocks that nobody has: telling the device that they hold nothing, and keeping some for a file that
// grows.

// startDiscard has blocks discarded when their freeing is durable, if the mount asks for it.
func (v *FS) startDiscard() {
	if !v.opt.Discard || !v.writable() {
		return
	}
	if !v.dev.Info().Discard {
		v.opt.Logf("%s: the device does not discard: the option discard does nothing", v.name())
		return
	}
	said := false // by the journal's committer only
	v.alloc.SetDiscard(func(start jbd2.Block, n uint32) {
		if err := v.discard(start, n); err != nil && !said {
			said = true
			v.opt.Logf("%s: discarding freed blocks: %v", v.name(), err)
		}
	})
}

func (v *FS) discard(start jbd2.Block, n uint32) error {
	return v.dev.Discard(blockdev.Bytes(start)<<v.bits, blockdev.Bytes(n)<<v.bits)
}

// Trim discards the free blocks in length bytes from start, in runs of at least least bytes, and returns how many bytes
// that were: FITRIM of ioctl(2).
func (v *FS) Trim(start, length, least uint64) (trimmed uint64, err error) {
	defer v.noteTo(&err)
	bs := uint64(v.bs)
	switch {
	case !v.dev.Info().Discard:
		return 0, fmt.Errorf("the device does not discard: %w", ErrNotSup)
	case !v.writable():
		return 0, ErrReadOnly
	case start>>v.bits >= v.sb.BlocksCount, length < bs, least>>v.bits > uint64(v.sb.BlocksPerGroup):
		return 0, ErrInvalid
	}
	// Blocks that were freed but not durably are not free yet.
	if err := v.jnl.Commit(); err != nil {
		return 0, err
	}
	from := (start + bs - 1) >> v.bits
	to := v.sb.BlocksCount
	if end := start + length; end >= start {
		to = min(to, end>>v.bits)
	}
	n, err := v.alloc.Trim(jbd2.Block(from), jbd2.Block(to), uint32((least+bs-1)>>v.bits), v.discard)
	return n << v.bits, err
}
