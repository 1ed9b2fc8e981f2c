package ext4

import (
	"errors"
	"fmt"
	"time"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// noteTo is note for a deferred call. It is deferred first, so that it runs after all locks are released.
func (v *FS) noteTo(err *error) {
	if *err != nil {
		*err = v.note(*err)
	}
}

// note turns corruption found by the layers below into ErrCorrupt. The first time, it says so in the log, records it in
// the superblock as the kernel does, and makes the volume read-only (errors=remount-ro).
func (v *FS) note(err error) error {
	if errors.Is(err, jbd2.ErrAborted) {
		if !v.readOnly.Swap(true) {
			v.opt.Logf("%s: %v: the volume is read-only now", v.name(), err)
		}
		return err
	}
	if !isCorrupt(err) || errors.Is(err, ErrCorrupt) {
		return err
	}
	if !v.errored.Swap(true) {
		v.opt.Logf("%s: %v: the volume is read-only now; run e2fsck on it", v.name(), err)
		v.recordError(err)
		v.readOnly.Store(true)
	}
	return fmt.Errorf("%w: %w", ErrCorrupt, err)
}

func isCorrupt(err error) bool {
	var d *disk.CorruptError
	return errors.As(err, &d)
}

// recordError writes s_error_count and its like ([layout] Super Block, 0x194).
func (v *FS) recordError(cause error) {
	if v.readOnly.Load() || v.sbBuf == nil {
		return
	}
	err := v.do(2, func(h *jbd2.Handle) error {
		v.updateSuper(h, func(sb *disk.Superblock) {
			sb.State |= disk.StateError
			now := uint64(time.Now().Unix())
			if sb.ErrorCount == 0 {
				sb.FirstErrorTime = now
				sb.FirstErrorFunc = [32]byte{}
				copy(sb.FirstErrorFunc[:], "lanefs")
			}
			sb.ErrorCount++
			sb.LastErrorTime = now
			sb.LastErrorFunc = [32]byte{}
			copy(sb.LastErrorFunc[:], "lanefs")
		})
		return nil
	})
	if err == nil {
		err = v.jnl.Commit()
	}
	if err != nil {
		v.opt.Logf("%s: cannot record the error %q in the superblock: %v", v.name(), cause, err)
	}
}
