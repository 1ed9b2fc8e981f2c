package media

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Zero implements Medium.
func (m *Image) Zero(off, n int64, durable bool, _ uint64) error {
	if err := m.present(off, n); err != nil {
		return err
	}
	m.writes()
	err := m.refused(off, n, m.pages.without(off, n, m.zeroRange, m.writeZeroes))
	if err == nil && m.block {
		// Beyond the end of a device Linux zeroes what is there, and calls that a success.
		if err = m.measure(); err == nil {
			err = m.gone(off, n)
		}
	}
	if err == nil && durable {
		err = m.Flush()
	}
	return err
}

func (m *Image) zeroRange(off, n int64) error {
	err := error(unix.EOPNOTSUPP)
	if m.punch {
		err = retry(func() error {
			return unix.Fallocate(m.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
		})
	}
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = retry(func() error {
			return unix.Fallocate(m.fd, unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, off, n)
		})
	}
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		err = m.writeZeroes(off, n)
	}
	return err
}

// writeZeroes is for files and devices that know no other way.
func (m *Image) writeZeroes(off, n int64) error {
	z := alignedBytes(min(n, 1<<20))
	for n > 0 {
		w, err := unix.Pwrite(m.fd, z[:min(n, int64(len(z)))], off)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		off, n = off+int64(w), n-int64(w)
	}
	return nil
}
