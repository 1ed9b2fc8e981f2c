package media

import (
	"golang.org/x/sys/unix"
)

// Linux reports an error of writing a file's pages to the disk once, to the next caller that synchronizes the file, and counts the pages
// as clean from then on. A second synchronization has nothing to write and succeeds; when the pages leave the cache, the old contents are back.
// So an image of which one synchronization has failed is lost: no Flush and no write that is to be durable succeeds any more,
// until the image is opened anew. It goes on trying all the same, for what that may save.
//
// One synchronization runs at a time. Of two that overlap only one may be told of the error.

// LostError is the error of an image of which something was written and is not known to be durable.
type LostError struct{ Err error }

func (e *LostError) Error() string { return "what was written is not durable: " + e.Err.Error() }
func (e *LostError) Unwrap() error { return e.Err }

// durably makes something durable by f.
func (m *Image) durably(f func() error) error {
	m.syncing.Lock()
	defer m.syncing.Unlock()
	err := f()
	if err == nil {
		err = m.Whole()
	}
	return m.settle(err)
}

// settle notes an error of making something durable, and returns that of the first.
func (m *Image) settle(err error) error {
	if err != nil {
		m.lost.CompareAndSwap(nil, &LostError{err})
	}
	if lost := m.lost.Load(); lost != nil {
		return lost
	}
	return nil
}

// Flush makes all that was written durable. A call that was interrupted has not had its result: what failed is still to be told. In RAM what was
// written is all there is.
func (m *Image) Flush() error {
	if m.inRAM {
		return m.flushed(m.settle(m.Whole()))
	}
	return m.flushed(m.durably(func() error { return retry(func() error { return unix.Fdatasync(m.fd) }) }))
}

// flushed passes on how a flush has ended.
func (m *Image) flushed(err error) error {
	switch {
	case m.block:
		m.lookBelow()
	case err == nil:
		m.quiet()
	}
	return err
}

// FlushesAtOnce implements Medium. The fsync of tmpfs and ramfs does nothing.
func (m *Image) FlushesAtOnce() bool { return m.inRAM }

// Write writes twice what is to be durable: first so that reads see it, then with the range's synchronization. One call for both
// would not tell a write that was refused, for lack of room above all, from one that was accepted and lost. To a block device it goes round the page cache, and once;
// to an image in RAM once, since there is no disk behind it.
func (m *Image) Write(b *Buffers, off int64, durable bool, _ uint64) error {
	if err := m.present(off, b.n); err != nil {
		return err
	}
	if m.Direct() {
		return m.writeDirect(b, off, durable)
	}
	m.writes()
	err := m.pwritev(b, off, 0)
	if err != nil || !durable {
		return err
	}
	if m.inRAM {
		return m.settle(m.gone(0, m.size)) // as the look before the write had it
	}
	return m.durably(func() error {
		if err := m.present(off, b.n); err != nil {
			return err
		}
		return m.pwritev(b, off, unix.RWF_DSYNC)
	})
}

func (m *Image) pwritev(b *Buffers, off int64, flags int) error {
	return m.refused(off, b.n, m.move(unix.SYS_PWRITEV2, b, off, flags))
}
