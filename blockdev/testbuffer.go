package blockdev

import (
	"fmt"
	"sync/atomic"
)

const pageSize = 4096

// buffer is Go memory, aligned as pinned memory is.
type buffer struct {
	dev      *TestDevice
	b        []byte
	released atomic.Bool
}

// Alloc gives a buffer filled with 0xdb.
func (d *TestDevice) Alloc(n int, _ ...Use) (Buffer, error) {
	if n < 0 {
		return nil, fmt.Errorf("a buffer of %d bytes: %w", n, ErrInvalid)
	}
	if err := d.shortOf(n); err != nil {
		return nil, err
	}
	d.bufs.Add(1)
	return &buffer{dev: d, b: TestMemory(max((n+pageSize-1)/pageSize*pageSize, pageSize))}, nil
}

func (b *buffer) Bytes() []byte { return b.b }
func (b *buffer) Len() int      { return len(b.b) }

func (b *buffer) Slice(off, n int) Slice { return Slice{Buf: b, Off: off, N: n} }

// Release overwrites the buffer. A second Release panics.
func (b *buffer) Release() {
	if b.released.Swap(true) {
		panic("blockdev: buffer released twice")
	}
	b.dev.bufs.Add(-1)
	ReleaseTestMemory(b.b)
}
