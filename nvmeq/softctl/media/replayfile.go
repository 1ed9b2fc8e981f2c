package media

import (
	"bytes"
	"fmt"

	"golang.org/x/sys/unix"
)

// WriteTo makes the file at path hold the medium at the last cut, creating it if need be. A file that already holds
// something similar, such as that of the cut before with what a recovery did to it, is compared and only what differs is
// written; blocks of zeroes stay or become holes. It reports how many bytes were written.
func (p *Replay) WriteTo(path string) (written int64, err error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return 0, fmt.Errorf("replay: %q: %w", path, err)
	}
	defer func() {
		if e := unix.Close(fd); err == nil && e != nil {
			err = fmt.Errorf("replay: %q: %w", path, e)
		}
	}()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("replay: %q: %w", path, err)
	}
	if st.Size != p.rec.size {
		if err := unix.Ftruncate(fd, p.rec.size); err != nil {
			return 0, fmt.Errorf("replay: %q: size %d: %w", path, p.rec.size, err)
		}
	}
	f := &replayFile{p: p, fd: fd, buf: make([]byte, 1<<20)}
	// Holes of the file need a look only where the medium has data.
	at := int64(0)
	err = dataExtents(fd, p.rec.size, func(off, n int64) error {
		if err := f.fill(at, off); err != nil {
			return err
		}
		at = off + n
		return f.compare(off, n)
	})
	if err == nil {
		err = f.fill(at, p.rec.size)
	}
	if err != nil {
		return f.written, fmt.Errorf("replay: %q: %w", path, err)
	}
	return f.written, nil
}

type replayFile struct {
	p       *Replay
	fd      int
	buf     []byte
	written int64
}

var zeroPage [pageSize]byte

// fill writes the medium's data between from and to, where the file has a hole.
func (f *replayFile) fill(from, to int64) error {
	for off := from; off < to; {
		end := min(to, off/pageSize*pageSize+pageSize)
		page := off / pageSize
		if f.p.used[page/64]>>(page%64)&1 == 0 {
			if f.p.used[page/64] == 0 && page%64 == 0 { // nothing in the next 64 pages
				end = min(to, off/pageSize*pageSize+64*pageSize)
			}
			off = end
			continue
		}
		if b := f.p.mem[off:end]; !bytes.Equal(b, zeroPage[:len(b)]) {
			if err := f.write(b, off); err != nil {
				return err
			}
		}
		off = end
	}
	return nil
}

// compare makes the file's data equal the medium.
func (f *replayFile) compare(off, n int64) error {
	have := f.buf[:n]
	if err := preadFull(f.fd, have, off); err != nil {
		return err
	}
	want := f.p.mem[off : off+n]
	if bytes.Equal(have, want) {
		return nil
	}
	for len(want) > 0 {
		k := min(int64(len(want)), pageSize-off%pageSize)
		if w := want[:k]; !bytes.Equal(have[:k], w) {
			err := unix.EOPNOTSUPP
			if bytes.Equal(w, zeroPage[:k]) {
				err, _ = unix.Fallocate(f.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, k).(unix.Errno)
			}
			if err == unix.EOPNOTSUPP {
				if err := f.write(w, off); err != nil {
					return err
				}
			} else if err != 0 {
				return err
			}
		}
		have, want, off = have[k:], want[k:], off+k
	}
	return nil
}

func (f *replayFile) write(b []byte, off int64) error {
	for len(b) > 0 {
		n, err := unix.Pwrite(f.fd, b, off)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		b, off, f.written = b[n:], off+int64(n), f.written+int64(n)
	}
	return nil
}
