package ext4

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// op is one operation that changes metadata. It owns
//
//   - the locks of the inodes that it changes, from lock to the operation's end;
//   - its handle, and with it the credits, while do runs;
//   - what the one may do for whom it is done;
//   - what must be put back when it fails, on the volume and in memory;
//   - what is left to be done when no lock is held any more.
//
// What do runs ends in one of three ways: done; undone, when it returned an error; or, if something can't be undone, with the
// journal failed before any of it can be committed. Then the volume is read-only, and has the mark that e2fsck looks for.
// An operation too large for one handle calls do several times, and leaves a file that is right after each.
//
// Handles are begun and ended in this file only.
type op struct {
	fs  *FS
	may May
	h   *jbd2.Handle // while do runs f

	own      []*Inode // locked for writing, in the order of locking
	kept     []kept   // as they were when the handle began, or when they were locked under it
	renaming bool     // FS.renameMu is held
	sharing  bool     // FS.sharedXattr is held, until the handle ends
	done     []func() // when the handle has ended well
	after    []func() // when no lock is held any more, the latest first
}

// kept is what an inode has in memory that a handle changes.
type kept struct {
	d                           disk.Inode
	changed, cleanEnd, shortens bool
	access                      int64
}

// change runs f as one operation, and notes damage that it met when all locks are released.
func (v *FS) change(may []May, f func(o *op) error) (err error) {
	defer v.noteTo(&err)
	o := &op{fs: v}
	for _, m := range may {
		o.may |= m
	}
	defer o.release()
	return f(o)
}

// lock takes the inode's lock for writing, until the operation ends.
func (o *op) lock(i *Inode) {
	i.mu.Lock()
	o.took(i)
}

// tryLock is lock for an inode whose lock nobody has; else it reports false.
func (o *op) tryLock(i *Inode) bool {
	if !i.mu.TryLock() {
		return false
	}
	o.took(i)
	return true
}

func (o *op) took(i *Inode) {
	o.own = append(o.own, i)
	if o.h != nil {
		o.kept = append(o.kept, i.keep())
	}
}

// lockTree keeps other operations from moving directories, until this one ends.
func (o *op) lockTree() {
	o.fs.renameMu.Lock()
	o.renaming = true
}

// lockShared takes FS.sharedXattr until the handle ends: nobody may build on a count that may yet be undone.
func (o *op) lockShared() {
	if !o.sharing {
		o.fs.sharedXattr.Lock()
		o.sharing = true
	}
}

func (o *op) unlockShared() {
	if o.sharing {
		o.fs.sharedXattr.Unlock()
		o.sharing = false
	}
}

// later has f run when the operation has ended and holds no lock.
func (o *op) later(f func()) { o.after = append(o.after, f) }

// onDone has f run when the handle has ended well, before its locks are released.
func (o *op) onDone(f func()) { o.done = append(o.done, f) }

func (o *op) release() {
	for k := len(o.own) - 1; k >= 0; k-- {
		o.own[k].mu.Unlock()
	}
	o.own = nil
	if o.renaming {
		o.fs.renameMu.Unlock()
		o.renaming = false
	}
	for k := len(o.after) - 1; k >= 0; k-- {
		o.after[k]()
	}
	o.after = nil
}

// do runs f under a handle of so many credits, and undoes it if it returns an error. When there is no space, but will be
// after a commit, it commits and runs f again.
func (o *op) do(credits int, f func() error) error {
	err := o.once(credits, f)
	if !errors.Is(err, ErrNoSpace) || o.fs.alloc.Pending() == 0 {
		return err
	}
	if err := o.fs.jnl.Commit(); err != nil {
		return err
	}
	return o.once(credits, f)
}

func (o *op) once(credits int, f func() error) error {
	if o.fs.readOnly.Load() {
		return ErrReadOnly
	}
	return o.force(credits, f)
}

// force is do that runs f at most once, also when the volume has become read-only.
func (o *op) force(credits int, f func() error) error {
	jnl := o.fs.jnl
	h, err := jnl.Begin(min(credits, jnl.MaxCredits()))
	if err != nil {
		return err
	}
	return o.under(h, f)
}

// try is do for who must not wait. It reports false if a handle was not to be had at once.
func (o *op) try(credits int, f func() error) (bool, error) {
	h := o.fs.jnl.TryBegin(credits)
	if h == nil {
		return false, nil
	}
	return true, o.under(h, f)
}

// under runs f under h, which it ends.
func (o *op) under(h *jbd2.Handle, f func() error) error {
	o.h = h
	for _, i := range o.own {
		o.kept = append(o.kept, i.keep())
	}
	err := f()
	if err == nil {
		err = o.fs.jnl.Err() // then nothing of it will be committed
	}
	if err != nil {
		err = o.undo(err)
	}
	o.unlockShared()
	o.h, o.kept = nil, nil
	if end := h.End(); err == nil {
		err = end
	}
	done := o.done
	o.done = nil
	if err == nil {
		for _, f := range done {
			f()
		}
	}
	return err
}

// undo puts everything back because of an error, or stops the journal.
func (o *op) undo(cause error) error {
	whole := o.h.Undo()
	for k, i := range o.own {
		i.putBack(&o.kept[k])
	}
	if whole {
		return cause
	}
	o.fs.jnl.Fail(fmt.Errorf("half an operation could not be undone: %w", cause))
	return fmt.Errorf("%w: %w", o.fs.jnl.Err(), cause)
}

func (i *Inode) keep() kept {
	return kept{d: i.d, changed: i.changed, cleanEnd: i.cleanEnd, shortens: i.shortens, access: i.accessTime.Load()}
}

func (i *Inode) putBack(k *kept) {
	i.d, i.changed, i.cleanEnd, i.shortens = k.d, k.changed, k.cleanEnd, k.shortens
	if k.access != 0 {
		i.accessTime.CompareAndSwap(0, k.access)
	}
}

// changeSlot has f change the inode's slot of the inode table, of which nobody else changes more than i_dtime.
func (o *op) changeSlot(i *Inode, f func(slot []byte)) error {
	buf, slot, err := i.slot()
	if err != nil {
		return err
	}
	defer buf.Put()
	h, old := o.h, bytes.Clone(slot)
	h.OnUndo(func() {
		buf.Lock()
		defer buf.Unlock()
		copy(slot, old)
		if i.nextOrphan.Load() >= 0 {
			i.linkOrphan(slot) // it may have another successor by now
		}
		h.DirtyShared(buf)
	}, buf)
	buf.Lock()
	f(slot)
	h.DirtyShared(buf)
	buf.Unlock()
	return nil
}
