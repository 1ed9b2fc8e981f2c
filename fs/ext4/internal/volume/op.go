package volume

import (
	"errors"
	"fmt"
	"sync"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// Op is one operation that changes metadata. It owns
//
//   - the locks of the inodes that it changes, from Lock to the operation's end;
//   - its handle, and with it the credits, while Do runs;
//   - what its caller may do;
//   - what must be put back when it fails, on the volume and in memory;
//   - what is left to be done when no lock is held any more.
//
// What Do runs ends in one of three ways: done; undone, when it returned an error; or, if something can't be undone, with the
// journal failed before any of it can be committed. Then the volume is read-only, and has the mark that e2fsck looks for.
// An operation too large for one handle calls Do several times, and leaves a file that is right after each.
//
// Handles are begun and ended in this file only.
type Op struct {
	FS     *FS
	may    May
	Handle *jbd2.Handle // while Do runs f

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
	access                      uint64
}

// Change runs f as one operation, and notes damage that it met when all locks are released.
func (v *FS) Change(may []May, f func(o *Op) error) (err error) {
	defer v.Times.Start(TimeChange).End()
	defer v.NoteTo(&err)
	o := ops.Get().(*Op)
	o.FS = v
	for _, m := range may {
		o.may |= m
	}
	defer o.release()
	return f(o)
}

// ops is memory of operations that have ended. Nobody has an Op any more then.
var ops = sync.Pool{New: func() any { return new(Op) }}

// Lock takes the inode's lock for writing, until the operation ends.
func (o *Op) Lock(i *Inode) {
	o.LockToWrite(i)
	o.FS.LastBlocks.Drop(i)
}

// LockToWrite is Lock for a write to the file, which may go on with FS.LastBlocks and drops it when it writes.
func (o *Op) LockToWrite(i *Inode) {
	i.Mu.Lock()
	o.locked(i)
}

// tryLock is LockToWrite that does not wait: it reports false if the inode's lock is taken. Its callers change times.
func (o *Op) tryLock(i *Inode) bool {
	if !i.Mu.TryLock() {
		return false
	}
	o.locked(i)
	return true
}

// locked notes that the operation has the inode's lock.
func (o *Op) locked(i *Inode) {
	o.own = append(o.own, i)
	if o.Handle != nil {
		o.kept = append(o.kept, i.keep())
	}
}

// LockTree keeps other operations from moving directories, until this one ends.
func (o *Op) LockTree() {
	o.FS.renameMu.Lock()
	o.renaming = true
}

// LockShared takes FS.sharedXattr until the handle ends: no other operation may build on a count that may yet be undone.
func (o *Op) LockShared() {
	if !o.sharing {
		o.FS.sharedXattr.Lock()
		o.sharing = true
	}
}

func (o *Op) unlockShared() {
	if o.sharing {
		o.FS.sharedXattr.Unlock()
		o.sharing = false
	}
}

// Later has f run when the operation has ended and holds no lock.
func (o *Op) Later(f func()) { o.after = append(o.after, f) }

// OnDone has f run when the handle has ended well, before its locks are released.
func (o *Op) OnDone(f func()) { o.done = append(o.done, f) }

func (o *Op) release() {
	for k := len(o.own) - 1; k >= 0; k-- {
		o.own[k].Mu.Unlock()
	}
	clear(o.own)
	o.own = o.own[:0]
	if o.renaming {
		o.FS.renameMu.Unlock()
		o.renaming = false
	}
	for k := len(o.after) - 1; k >= 0; k-- {
		o.after[k]()
	}
	clear(o.after)
	*o = Op{own: o.own, kept: o.kept[:0], done: o.done[:0], after: o.after[:0]}
	ops.Put(o)
}

// tries is how often Do runs its function: others may take what a commit has freed.
const tries = 3

// Do runs f under a handle of so many credits, and undoes it if it returns an error. When there is no space, but will be
// after a commit, or is since one that came meanwhile, it runs f again.
func (o *Op) Do(credits int, f func() error) error {
	for n := 1; ; n++ {
		released := o.FS.Alloc.Released()
		err := o.Once(credits, f)
		if !errors.Is(err, ErrNoSpace) || n == tries {
			return err
		}
		// In this order: what is no longer pending is released.
		if o.FS.Alloc.Pending() > 0 {
			if err := o.FS.Journal.Commit(); err != nil {
				return err
			}
		} else if o.FS.Alloc.Released() == released {
			return err
		}
	}
}

// Once is Do that runs f once only.
func (o *Op) Once(credits int, f func() error) error {
	if o.FS.readOnly.Load() {
		return ErrReadOnly
	}
	return o.force(credits, f)
}

// force is Once, also when the volume has become read-only.
func (o *Op) force(credits int, f func() error) error {
	jnl := o.FS.Journal
	h, err := jnl.Begin(min(credits, jnl.MaxCredits()))
	if err != nil {
		return err
	}
	return o.under(h, f)
}

// try is Do that does not wait: it reports false if there is no room for a handle at once.
func (o *Op) try(credits int, f func() error) (bool, error) {
	h := o.FS.Journal.TryBegin(credits)
	if h == nil {
		return false, nil
	}
	return true, o.under(h, f)
}

// under runs f under h, which it ends.
func (o *Op) under(h *jbd2.Handle, f func() error) error {
	o.Handle = h
	for _, i := range o.own {
		o.kept = append(o.kept, i.keep())
	}
	err := f()
	if err == nil {
		err = o.FS.Journal.Err() // then nothing of it will be committed
	}
	if err != nil {
		err = o.undo(err)
	}
	o.unlockShared()
	o.Handle, o.kept = nil, o.kept[:0]
	if end := h.End(); err == nil {
		err = end
	}
	if err == nil {
		for _, f := range o.done {
			f()
		}
	}
	clear(o.done)
	o.done = o.done[:0]
	return err
}

// undo puts everything back because of an error, or stops the journal.
func (o *Op) undo(cause error) error {
	whole := o.Handle.Undo()
	for k, i := range o.own {
		i.putBack(&o.kept[k])
	}
	if whole {
		return cause
	}
	o.FS.Journal.Fail(fmt.Errorf("half an operation could not be undone: %w", cause))
	return fmt.Errorf("%w: %w", o.FS.Journal.Err(), cause)
}

func (i *Inode) keep() kept {
	return kept{d: i.Disk, changed: i.Changed, cleanEnd: i.CleanEnd, shortens: i.Shortens, access: i.AccessTime.Load()}
}

func (i *Inode) putBack(k *kept) {
	i.Disk, i.Changed, i.CleanEnd, i.Shortens = k.d, k.changed, k.cleanEnd, k.shortens
	i.DirMap.Forget() // of blocks that were added
	if k.access != 0 {
		i.AccessTime.CompareAndSwap(0, k.access)
	}
}

// ChangeSlot has f change the inode's slot of the inode table, of which other operations change i_dtime alone.
func (o *Op) ChangeSlot(i *Inode, f func(slot []byte)) error {
	buf, off, err := i.slotAt()
	if err != nil {
		return err
	}
	defer buf.Put()
	n := int(i.FS.Super.InodeSize)
	o.Handle.SavePart(buf, off, n, (*slotPart)(i))
	buf.Lock()
	f(buf.Data()[off : off+n : off+n])
	o.Handle.DirtyShared(buf)
	buf.Unlock()
	return nil
}

// slotPart is an inode's slot, which an operation has put back.
type slotPart Inode

func (s *slotPart) PutBack(slot []byte) {
	if i := (*Inode)(s); i.nextOrphan.Load() >= 0 {
		i.linkOrphan(slot) // it may have another successor by now
	}
}
