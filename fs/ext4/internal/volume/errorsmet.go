package volume

import (
	"errors"
	"sync"
	"time"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// errorsMet is what a mount has met and the superblock does not say yet: s_error_count and its like ([layout] Super Block, 0x194). The next
// transaction takes it along, or the unmount, so counting begins no handle and waits for nothing. Errcodes are not kept: they lie in the
// superblock's second sector, which does not change while a volume is mounted (disk.Superblock.EncodeStable).
type errorsMet struct {
	mu          sync.Mutex
	n           uint32 // protected by mu, as is all below; 0: nothing
	first, last errorMet
	mark        bool // e2fsck has to see the volume
}

// errorMet is one error: when and where. Zero is a place that is not known.
type errorMet struct {
	at    uint64 // as the superblock has it
	ino   uint32
	block uint64
}

// count notes an error that this mount has met; mark says that e2fsck has to see the volume. It reports false, and notes nothing, when the
// volume is read-only since an error: as in the kernel, what comes after that says nothing new.
func (v *FS) count(err error, mark bool) bool {
	if v.errored.Load() && v.readOnly.Load() {
		return false
	}
	m := errorMet{at: disk.SuperTime(time.Now())}
	var read *jbd2.ReadError
	var damage *disk.CorruptError
	var inode *inodeError
	if errors.As(err, &read) {
		m.block = uint64(read.Block)
	}
	if errors.As(err, &inode) {
		m.ino = inode.ino
	} else if errors.As(err, &damage) {
		m.ino = inodeNamed(damage.What)
	}
	e := &v.met
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.n == 0 {
		e.first = m
	}
	e.n++
	e.last = m
	e.mark = e.mark || mark
	return true
}

// moveTo moves what was counted to a superblock.
func (e *errorsMet) moveTo(sb *disk.Superblock) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.n == 0 {
		return
	}
	by := [32]byte{}
	copy(by[:], "lanefs")
	if e.mark {
		sb.State |= disk.StateError
	}
	if sb.ErrorCount == 0 {
		sb.FirstErrorTime, sb.FirstErrorIno, sb.FirstErrorBlock, sb.FirstErrorFunc = e.first.at, e.first.ino, e.first.block, by
	}
	sb.ErrorCount += e.n
	sb.LastErrorTime, sb.LastErrorIno, sb.LastErrorBlock, sb.LastErrorFunc = e.last.at, e.last.ino, e.last.block, by
	e.n, e.mark = 0, false
}

// countedError is the failure to read metadata, which was counted. Notes of callers let it pass.
type countedError struct{ error }

func (e *countedError) Unwrap() error { return e.error }

// isUnreadable says that the device could not read metadata. For want of memory to read it nothing is wrong with the volume.
func isUnreadable(err error) bool {
	return err != nil && errors.As(err, new(*jbd2.ReadError)) && !errors.Is(err, blockdev.ErrNoMemory)
}

// strict says whether metadata that cannot be read has the consequence that corruption has: where the user, or the superblock, asks for one by a word
// of its own, unless it is one file's alone. The kernel makes the same difference, but for large directories, which it counts among the latter.
func (v *FS) strict(err error) bool {
	var of *inodeError
	if errors.As(err, &of) && of.own {
		return false
	}
	switch v.Opt.Errors {
	case ErrorsReadOnly, ErrorsPanic:
		return true
	case ErrorsOfVolume:
		return v.Super.Errors == disk.ErrorsRO || v.Super.Errors == disk.ErrorsPanic
	}
	return false
}

// passOver decides for the allocator whether a group is passed over whose bitmap cannot be read or is damaged: as long as errors let the volume
// take changes. A handle is open, so nothing but counting is done.
func (v *FS) passOver(err error, again bool) bool {
	corrupt := IsCorrupt(err)
	switch {
	case !v.Mounted, corrupt && v.Opt.Errors != ErrorsContinue, !corrupt && (!isUnreadable(err) || v.strict(err)):
		return false
	}
	v.count(err, corrupt)
	if corrupt {
		remedy := remedyMounted(err, true)
		v.remedy.Store(&remedy)
		v.errored.Store(true)
	}
	if !again {
		v.Opt.Log.Error("the bitmap of a group cannot be used; others are searched", "error", err)
	}
	return true
}

// PassOver has searches for blocks and inodes go on where a group's bitmap cannot be used.
func (v *FS) PassOver() { v.Alloc.PassOver(v.passOver) }
