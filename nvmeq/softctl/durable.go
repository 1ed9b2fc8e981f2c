package softctl

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// Linux tells an error of writing a file's pages to the disk once, to whoever synchronizes the file next, and counts the pages as clean
// from then on. A second synchronization has nothing to write and succeeds; when the pages leave the cache, the old contents are back.
// So an image of which one synchronization has failed is lost: this controller answers no Flush and no write that is to be durable with
// success any more, whatever is reset, until the image is opened anew. It goes on trying all the same, for what that may save.
//
// One synchronization runs at a time. Of two that overlap only one may be told of the error.

// lostError says that something was written and is not known to be durable.
type lostError struct{ err error }

func (e *lostError) Error() string { return "what was written is not durable: " + e.err.Error() }
func (e *lostError) Unwrap() error { return e.err }

// RemembersFailedFlush implements nvmeq.FlushWitness.
func (c *Controller) RemembersFailedFlush() {}

// durably makes something durable by f.
func (m *image) durably(f func() error) error {
	m.syncing.Lock()
	defer m.syncing.Unlock()
	err := f()
	if err == nil {
		err = m.whole()
	}
	if err != nil {
		m.lost.CompareAndSwap(nil, &lostError{err})
	}
	if lost := m.lost.Load(); lost != nil {
		return lost
	}
	return nil
}

// flush makes all that was written durable. A call that was interrupted has not had its result: what failed is still to be told.
func (m *image) flush() error {
	return m.durably(func() error { return retry(func() error { return unix.Fdatasync(m.fd) }) })
}

// writev writes twice what is to be durable: first so that reads see it, then with the range's synchronization. One call for both
// would not tell a write that was refused, for lack of room above all, from one that was accepted and lost.
func (m *image) writev(v *vector, off int64, durable bool, _ uint64) error {
	if err := m.present(off, v.moves()); err != nil {
		return err
	}
	err := m.pwritev(v, off, 0)
	if err != nil || !durable {
		return err
	}
	return m.durably(func() error {
		if err := m.present(off, v.moves()); err != nil {
			return err
		}
		return m.pwritev(v, off, unix.RWF_DSYNC)
	})
}

func (m *image) pwritev(v *vector, off int64, flags int) error {
	err := v.each(off, func(iov []unix.Iovec, off int64) (int64, error) {
		return vectored(unix.SYS_PWRITEV2, m.fd, iov, off, flags)
	})
	return m.refused(off, v.moves(), err)
}

// An image that somebody truncates has lost what was beyond its new end. That is said, and stays so until the image is opened anew,
// even if it grows again: its blocks answer neither reads nor writes, nothing is flushed, and no write makes the file longer. The length
// is looked at before each write and each look at its pages, at each flush, and when a read ends early. A truncation that is undone
// between two looks is not seen; nor is one in the moment between a look and a write to the image's last blocks.

var errGone = errors.New("the image was truncated while in use")

// gone is the error of a range that is not there any more.
func (m *image) gone(off, n int64) error {
	if end := m.end.Load(); off+n > end {
		return fmt.Errorf("%w: of %d bytes %d are left", errGone, m.size, end)
	}
	return nil
}

// present says whether a range has been there all the time. A device does not grow by being written to: it is measured when it refuses.
func (m *image) present(off, n int64) error {
	if !m.block {
		if err := m.measure(); err != nil {
			return err
		}
	}
	return m.gone(off, n)
}

// measure looks at how long the image is.
func (m *image) measure() error {
	var st unix.Stat_t
	if err := unix.Fstat(m.fd, &st); err != nil {
		return err
	}
	if m.block {
		size, err := unix.Seek(m.fd, 0, io.SeekEnd)
		if err != nil {
			return err
		}
		st.Size = size
	}
	for end := m.end.Load(); st.Size < end; end = m.end.Load() {
		if m.end.CompareAndSwap(end, st.Size) {
			m.log.Error("the image was truncated: what was beyond its end is gone", "image", m.path, "size", m.size, "left", st.Size)
		}
	}
	return nil
}

// refused is the error of a range that could not be read or written: beyond the end of a device Linux says ENOSPC.
func (m *image) refused(off, n int64, err error) error {
	if err != nil && m.measure() == nil && m.gone(off, n) != nil {
		return m.gone(off, n)
	}
	return err
}

// whole says whether all of the image is there.
func (m *image) whole() error {
	if err := m.measure(); err != nil {
		return err
	}
	return m.gone(0, m.size)
}

// Failed is why this controller says no more that anything is durable, nil as long as it does.
func (c *Controller) Failed() error {
	for _, m := range c.files {
		if lost := m.lost.Load(); lost != nil {
			return fmt.Errorf("image %q: %w", m.path, lost)
		}
		if err := m.gone(0, m.size); err != nil {
			return fmt.Errorf("image %q: %w", m.path, err)
		}
	}
	return nil
}
