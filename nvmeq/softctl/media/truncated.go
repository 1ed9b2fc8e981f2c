package media

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// An image that another program truncates has lost what was beyond its new end. That is said, and stays so until the image is opened anew,
// even if it grows again: its blocks answer neither reads nor writes, nothing is flushed, and no write makes the file longer. The length
// is looked at before each write and each look at its pages (once for those of a batch), at each flush, and when a read ends early. Of an
// image in RAM its last page is looked at instead, where a range ends before that (edge.go). A truncation that is undone
// between two looks is not seen; nor is one in the moment between a look and a write to the image's last blocks.

// ErrTruncated is the error of a range that is not there any more.
var ErrTruncated = errors.New("the image was truncated while in use")

// gone is the error of a range that is not there any more.
func (m *Image) gone(off, n int64) error {
	if end := m.end.Load(); off+n > end {
		return fmt.Errorf("%w: of %d bytes %d are left", ErrTruncated, m.size, end)
	}
	return nil
}

// present says whether a range has been there all the time. A device does not grow by being written to: it is measured when it refuses.
func (m *Image) present(off, n int64) error {
	if !m.block && (m.end.Load() < m.size || !m.edge.before(off, n)) {
		if err := m.measure(); err != nil {
			return err
		}
	}
	return m.gone(off, n)
}

// measure looks at how long the image is.
func (m *Image) measure() error {
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
	if m.block && st.Size-m.size >= 4096 && !m.grown.Swap(true) {
		m.log.Warn("the device has become larger: what was added is there at the next mount", "image", m.path, "size", m.size, "now", st.Size)
	}
	for end := m.end.Load(); st.Size < end; end = m.end.Load() {
		if m.end.CompareAndSwap(end, st.Size) {
			m.log.Error("the image was truncated: what was beyond its end is gone; unmount, and run e2fsck on it", "image", m.path, "size", m.size, "left", st.Size)
		}
	}
	return nil
}

// refused is the error of a range that could not be read or written: beyond the end of a device Linux says ENOSPC.
func (m *Image) refused(off, n int64, err error) error {
	if err != nil && m.measure() == nil && m.gone(off, n) != nil {
		return m.gone(off, n)
	}
	return err
}

// Whole says whether all of the image is there, or with what error not.
func (m *Image) Whole() error {
	if err := m.measure(); err != nil {
		return err
	}
	return m.gone(0, m.size)
}

// Failed is why the image is not, or not durably, what was written to it; nil as long as it is. It makes no system call.
func (m *Image) Failed() error {
	if lost := m.lost.Load(); lost != nil {
		return lost
	}
	return m.gone(0, m.size)
}
