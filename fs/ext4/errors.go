package ext4

import (
	"errors"
	"fmt"
	"time"

	"github.com/lanefs/lanefs/blockdev"
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
// the superblock as the kernel does, and makes the volume read-only (errors=remount-ro). Before the volume is mounted it
// is for Open's caller to tell.
func (v *FS) note(err error) error {
	switch {
	case isCorrupt(err):
		if errors.Is(err, ErrCorrupt) {
			return err
		}
		if v.mounted && !v.errored.Swap(true) {
			v.readOnly.Store(true)
			v.opt.Logf("%s: %v: the volume is read-only now; run e2fsck on it", v.name(), err)
			v.recordError(err)
		}
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	case errors.Is(err, jbd2.ErrAborted):
		if !v.readOnly.Swap(true) {
			v.opt.Logf("%s: %v: the volume is read-only now", v.name(), err)
		}
	}
	return err
}

// isCorrupt says whether the layers below report that something on the volume cannot be.
func isCorrupt(err error) bool {
	var d *disk.CorruptError
	return errors.As(err, &d) || errors.Is(err, jbd2.ErrCorrupt)
}

// distrust makes a volume read-only that must not be written to before e2fsck has looked at it: an earlier mount met
// damage, or ended without bringing bitmaps and counters up to date; or this one sees damage in what allocation goes by.
// The kernel warns and goes on, or refuses; but to allocate by a bitmap that is wrong is to overwrite somebody's file,
// and what can be read should be.
func (v *FS) distrust(j journalFound, damage error) {
	why := ""
	switch {
	case v.readOnly.Load():
		return
	case v.sb.State&disk.StateError != 0 || j.log != nil && j.log.Info().Errno != 0:
		why = "has errors that were met before"
	case damage != nil:
		why = fmt.Sprintf("is damaged (%v)", damage)
	case v.sb.State&disk.StateValid == 0:
		why = "was not unmounted cleanly and has nothing in a journal to say what is right"
	default:
		return
	}
	v.opt.Logf("%s: the volume %s: mounted read-only; run e2fsck on it", v.name(), why)
	v.readOnly.Store(true)
}

// recordError writes s_error_count and its like ([layout] Super Block, 0x194). It commits what was done before; when the
// running transaction had to be forgotten, only the superblock on the medium changes, for the one in memory knows of it.
func (v *FS) recordError(cause error) {
	if v.sbBuf == nil { // nothing was to be written
		return
	}
	h, err := v.jnl.Begin(2)
	if err == nil {
		v.updateSuper(h, setError)
		if err = h.End(); err == nil {
			err = v.jnl.Commit()
		}
	}
	if errors.Is(err, jbd2.ErrAborted) {
		err = v.stampError()
	}
	if err != nil {
		v.opt.Logf("%s: cannot record the error %q in the superblock: %v", v.name(), cause, err)
	}
}

func setError(sb *disk.Superblock) {
	now := uint64(time.Now().Unix())
	by := [32]byte{}
	copy(by[:], "lanefs")
	sb.State |= disk.StateError
	if sb.ErrorCount == 0 {
		sb.FirstErrorTime, sb.FirstErrorFunc = now, by
	}
	sb.ErrorCount++
	sb.LastErrorTime, sb.LastErrorFunc = now, by
}

// stampError is setError of the superblock on the medium. The log may hold an older copy of it that is replayed over
// this one: then the journal's own superblock tells of the error.
func (v *FS) stampError() error {
	v.sbMu.Lock()
	defer v.sbMu.Unlock()
	buf, err := v.dev.Alloc(v.bs)
	if err != nil {
		return err
	}
	defer buf.Release()
	s, off := buf.Slice(0, v.bs), blockdev.Bytes(v.sb.SuperBlockNo())<<v.bits
	if err := v.dev.Read(off, s); err != nil {
		return err
	}
	b := s.Bytes()[disk.SuperblockOffset&(v.bs-1):]
	sb, err := disk.DecodeSuperblock(b)
	if err != nil {
		return err
	}
	setError(sb)
	sb.EncodeStable(b)
	if err := v.dev.Write(off, true, s); err != nil {
		return err
	}
	return v.dev.Flush()
}
