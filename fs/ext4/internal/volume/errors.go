package volume

import (
	"errors"
	"fmt"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4/alloc"
	"github.com/lanefs/lanefs/fs/ext4/dir"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// Errors that callers tell apart. Everything else is an I/O error.
var (
	ErrNotExist    = dir.ErrNotExist
	ErrExist       = dir.ErrExist
	ErrNotDir      = errors.New("not a directory")
	ErrIsDir       = errors.New("is a directory")
	ErrNotEmpty    = errors.New("directory not empty")
	ErrInvalid     = errors.New("invalid argument")
	ErrNameTooLong = errors.New("file name too long")
	ErrNoSpace     = alloc.ErrNoSpace
	ErrTooManyLink = errors.New("too many links")
	ErrTooBig      = errors.New("file too large")
	ErrReadOnly    = errors.New("volume is read-only")
	ErrCorrupt     = errors.New("structure needs cleaning")
	ErrNoAttr      = errors.New("no such attribute")
	ErrNotSup      = errors.New("operation not supported")
	ErrPerm        = errors.New("operation not permitted") // immutable, append-only
	ErrRange       = errors.New("name or value too long")
	ErrClusters    = alloc.ErrReadOnly // free space of a volume with bigalloc
	ErrCrossDevice = errors.New("not of the directory's project")
	ErrNoData      = errors.New("no data past this offset") // Seek
	ErrStale       = errors.New("stale file handle")        // ByNumber: it leads to no file that has a name
)

// NoteTo is Note for a deferred call. It is deferred first, so that it runs after all locks are released.
func (v *FS) NoteTo(err *error) {
	if *err != nil {
		*err = v.Note(*err)
	}
}

// Note turns corruption found by the layers below into ErrCorrupt, and counts it, and metadata that cannot be read, for the superblock (see
// errorsMet). The first time, it logs corruption, records it in the superblock as the kernel does, and does what Options.Errors asks for; that of
// metadata which cannot be read as strict says. An aborted journal makes the volume read-only in any
// case. Before the mount is done nothing is recorded: Open returns the error.
func (v *FS) Note(err error) error {
	switch {
	case IsCorrupt(err):
		if errors.Is(err, ErrCorrupt) {
			return err
		}
		if v.Mounted && v.count(err, true) && !v.errored.Swap(true) {
			v.meet(err, v.recordError)
		}
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	case errors.Is(err, jbd2.ErrAborted):
		switch was := v.readOnly.Swap(true); {
		case was:
		case v.Mounted && v.Journal.Failed() && v.count(err, true) && !v.errored.Swap(true):
			v.meet(err, v.stampError)
		default:
			why := remedyMounted(err, false)
			v.stopped.Store(&why)
			v.Opt.Log.Error("the volume is read-only now; "+why, "error", err)
		}
	case v.Mounted && isUnreadable(err):
		if errors.As(err, new(*countedError)) {
			return err
		}
		if strict := v.strict(err); v.count(err, strict) && strict && !v.errored.Swap(true) {
			v.meet(err, v.recordError)
		}
		return &countedError{err}
	}
	return err
}

// meet reacts to the first error of a mount.
func (v *FS) meet(err error, record func() error) {
	mode, remedy := v.Opt.Errors, remedyMounted(err, true)
	v.remedy.Store(&remedy)
	if mode == ErrorsOfVolume && v.Super.Errors == disk.ErrorsPanic {
		mode = ErrorsPanic
	}
	if mode == ErrorsContinue && !v.readOnly.Load() {
		v.Opt.Log.Error("an error was met; the volume takes changes all the same (errors=continue); "+remedy, "error", err)
	} else {
		v.readOnly.Store(true)
		v.Opt.Log.Error("the volume is read-only now; "+remedy, "error", err)
	}
	if v.sbBuf != nil { // else nothing was to be written
		if rerr := record(); rerr != nil {
			v.Opt.Log.Error("the error cannot be recorded in the superblock, so the next mount does not know of it; "+remedy, "met", err, "error", rerr)
		}
	}
	if mode == ErrorsPanic {
		v.Opt.Panic(fmt.Errorf("%s: %w; %s", v.Name(), err, remedy))
	}
}

// IsCorrupt says whether the layers below report that something on the volume cannot be.
func IsCorrupt(err error) bool {
	if err == nil {
		return false // d is allocated
	}
	var d *disk.CorruptError
	return errors.As(err, &d) || errors.Is(err, jbd2.ErrCorrupt)
}

// RequireChecked makes a volume read-only that must not be written before e2fsck has checked it: an earlier mount met damage, or
// ended without bringing bitmaps and counters up to date, or this mount finds damage in what allocation uses. The kernel warns and
// goes on, or refuses the mount. But to allocate by a wrong bitmap is to overwrite a file, and what can be read should be readable.
// marked says that the journal has the mark of an error.
func (v *FS) RequireChecked(marked bool, damage error) {
	reason := ""
	switch {
	case v.Super.State&disk.StateError != 0 || marked:
		reason = "has errors that were met before"
	case damage != nil:
		reason = fmt.Sprintf("is damaged (%v)", damage)
	case v.Super.State&disk.StateValid == 0:
		reason = "was not unmounted cleanly and has nothing in a journal to say what is right"
	default:
		return
	}
	v.RequireFsck(reason)
}

// RequireFsck makes the volume read-only for want of a check by e2fsck, and says why.
func (v *FS) RequireFsck(reason string) {
	v.FsckReason = reason
	if !v.readOnly.Swap(true) {
		v.Opt.Log.Warn("mounted read-only; run e2fsck on the volume", "why", "the volume "+v.FsckReason)
	}
}

// recordError writes what was counted to the superblock, and commits it with what was done before. If the journal is aborted, only the
// superblock on the medium is changed: the one in memory may have changes of a lost transaction.
func (v *FS) recordError() error {
	o := &Op{FS: v}
	err := o.force(2, func() error {
		v.updateSuper(o.Handle, v.met.moveTo)
		return nil
	})
	if err == nil {
		err = v.Journal.Commit()
	}
	if errors.Is(err, jbd2.ErrAborted) {
		err = v.stampError()
	}
	return err
}

// KeepErrors carries the marks of errors over to a copy of the superblock from the log, which may be older than they are:
// only e2fsck takes them away.
func KeepErrors(to, from *disk.Superblock) {
	to.State |= from.State & disk.StateError
	if from.ErrorCount <= to.ErrorCount {
		return
	}
	to.ErrorCount = from.ErrorCount
	to.FirstErrorTime, to.FirstErrorIno, to.FirstErrorBlock = from.FirstErrorTime, from.FirstErrorIno, from.FirstErrorBlock
	to.FirstErrorFunc, to.FirstErrorLine, to.FirstErrorErrcode = from.FirstErrorFunc, from.FirstErrorLine, from.FirstErrorErrcode
	to.LastErrorTime, to.LastErrorIno, to.LastErrorBlock = from.LastErrorTime, from.LastErrorIno, from.LastErrorBlock
	to.LastErrorFunc, to.LastErrorLine, to.LastErrorErrcode = from.LastErrorFunc, from.LastErrorLine, from.LastErrorErrcode
}

// stampError writes what was counted to the superblock on the medium. The log may hold an older copy of it, which recovery writes over this
// one. LaneFS's recovery keeps the marks (KeepErrors); e2fsck's goes by the mark in the journal's superblock, so that is waited for.
func (v *FS) stampError() error {
	v.Journal.AwaitMark()
	v.SuperMu.Lock()
	defer v.SuperMu.Unlock()
	buf, err := v.Dev.Alloc(v.BlockSize, blockdev.ForBlock)
	if err != nil {
		return err
	}
	defer buf.Release()
	s, off := buf.Slice(0, v.BlockSize), blockdev.Bytes(v.Super.SuperBlockNo())<<v.BlockBits
	v.Counters.superRead.Add(int64(v.BlockSize))
	if err := v.Dev.Read(off, s); err != nil {
		return err
	}
	b := s.Bytes()[disk.SuperblockOffset&(v.BlockSize-1):]
	sb, err := disk.DecodeSuperblock(b)
	if err != nil {
		return err
	}
	v.met.moveTo(v.Super)
	KeepErrors(sb, v.Super)
	sb.EncodeStable(b)
	return v.SendSuper(s)
}

// SmallBlocksError is the error of a volume whose blocks are smaller than the device's logical blocks, both in bytes. What can be done depends on
// the device.
type SmallBlocksError struct{ Volume, Device int }

func (e *SmallBlocksError) Error() string {
	return fmt.Sprintf("the volume's blocks of %d bytes are smaller than the device's of %d", e.Volume, e.Device)
}
