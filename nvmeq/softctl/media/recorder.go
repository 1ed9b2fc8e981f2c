package media

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// Recorder logs what reaches an image: every write, deallocation, write of zeroes and flush, in the order of their
// completion. With the image as it was at the beginning that is enough to rebuild the medium as a power cut at any
// point could have left it (see Replay).
//
// A recorder holds the image's data and everything written to it in memory. While it records, the medium carries out
// one operation at a time, so that the log's order is the image's. It may follow the same image through several
// controllers, one after the other, if nothing else writes to the image meanwhile.
type Recorder struct {
	mu  sync.Mutex
	rec *Recording // nil until the first controller is opened
}

// NewRecorder gives a recorder that has logged nothing.
func NewRecorder() *Recorder { return &Recorder{} }

// Position is how many operations have been logged. What was acknowledged as durable when the position was p survives
// every cut at p or later. A nil Recorder is at 0.
func (r *Recorder) Position() int {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rec == nil {
		return 0
	}
	return len(r.rec.log)
}

// Recording is what has been logged so far. Recording goes on; what was returned does not change.
func (r *Recorder) Recording() *Recording {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rec == nil {
		return &Recording{}
	}
	snapshot := *r.rec
	snapshot.log = snapshot.log[:len(snapshot.log):len(snapshot.log)]
	return &snapshot
}

// begin copies the image's data when the first controller is opened on it.
func (r *Recorder) begin(m *Image, block int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rec != nil {
		if r.rec.size != m.size || r.rec.block != block {
			return fmt.Errorf("recorder: it follows an image of %d bytes in %d-byte blocks, and %q has %d in %d-byte blocks",
				r.rec.size, r.rec.block, m.path, m.size, block)
		}
		return nil
	}
	rec := &Recording{size: m.size, block: block}
	if err := dataExtents(m.fd, m.size, func(off, n int64) error {
		b := make([]byte, n)
		if err := preadFull(m.fd, b, off); err != nil {
			return fmt.Errorf("recorder: image %q: %w", m.path, err)
		}
		rec.base = append(rec.base, span{off, b})
		return nil
	}); err != nil {
		return err
	}
	r.rec = rec
	return nil
}

// dataExtents calls f for the parts of a file that are not holes, in pieces of at most 1 MiB. A file or device that
// cannot tell has no holes.
func dataExtents(fd int, size int64, f func(off, n int64) error) error {
	for off := int64(0); off < size; {
		data, err := unix.Seek(fd, off, unix.SEEK_DATA)
		if err == unix.ENXIO {
			return nil
		}
		end := size
		if err != nil {
			data = off
		} else if hole, err := unix.Seek(fd, data, unix.SEEK_HOLE); err == nil {
			end = min(hole, size)
		}
		for off = data; off < end; {
			n := min(end-off, 1<<20)
			if err := f(off, n); err != nil {
				return err
			}
			off += n
		}
	}
	return nil
}

func preadFull(fd int, b []byte, off int64) error {
	for len(b) > 0 {
		n, err := unix.Pread(fd, b, off)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return errShort
		}
		b, off = b[n:], off+int64(n)
	}
	return nil
}

// Follow gives the Medium through which all changes of m must go from now on: it logs them. The first call copies the data of the image;
// a later one fails unless it is for an image of the same size and block size, in bytes.
func (r *Recorder) Follow(m *Image, block int) (Medium, error) {
	if err := r.begin(m, block); err != nil {
		return nil, err
	}
	return &recorded{m, r}, nil
}

// recorded is a medium whose changes are logged once they have been made.
type recorded struct {
	Medium
	r *Recorder
}

func (m *recorded) Write(b *Buffers, off int64, durable bool, arrival uint64) error {
	// The host may change its memory at any time: what is written is what is logged.
	data := make([]byte, b.n)
	b.gather(data)
	var one Buffers
	one.Add(data)
	m.r.mu.Lock()
	defer m.r.mu.Unlock()
	if err := m.Medium.Write(&one, off, durable, arrival); err != nil {
		return err
	}
	m.r.rec.add(operation{kind: opKindWrite, off: off, n: b.n, data: data, durable: durable, arrival: arrival})
	return nil
}

func (m *recorded) Zero(off, n int64, durable bool, arrival uint64) error {
	m.r.mu.Lock()
	defer m.r.mu.Unlock()
	if err := m.Medium.Zero(off, n, durable, arrival); err != nil {
		return err
	}
	m.r.rec.add(operation{kind: opKindZero, off: off, n: n, durable: durable, arrival: arrival})
	return nil
}

func (m *recorded) Discard(off, n int64) error { return m.Zero(off, n, false, 0) }

func (m *recorded) Flush() error {
	m.r.mu.Lock()
	defer m.r.mu.Unlock()
	if err := m.Medium.Flush(); err != nil {
		return err
	}
	m.r.rec.add(operation{kind: opKindFlush})
	return nil
}
