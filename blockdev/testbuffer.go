package blockdev

import (
	"fmt"
	"strings"
	"sync/atomic"
	"unsafe"
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
	size := max((n+pageSize-1)/pageSize*pageSize, pageSize)
	raw := make([]byte, size+pageSize)
	skip := -int(uintptr(unsafe.Pointer(&raw[0]))) & (pageSize - 1)
	b := &buffer{dev: d, b: raw[skip : skip+size : skip+size]}
	b.poison()
	d.bufs.Add(1)
	return b, nil
}

func (b *buffer) Bytes() []byte { return b.b }
func (b *buffer) Len() int      { return len(b.b) }

func (b *buffer) Slice(off, n int) Slice { return Slice{Buf: b, Off: off, N: n} }

// Release overwrites the buffer. A second Release panics.
func (b *buffer) Release() {
	if b.released.Swap(true) {
		panic("blockdev: buffer released twice")
	}
	b.poison()
	b.dev.bufs.Add(-1)
}

func (b *buffer) poison() {
	for left := b.b; len(left) > 0; {
		left = left[copy(left, poisoned[:]):]
	}
}

// poisoned is copied: under the race detector a loop over bytes would take as long as all else that a test does.
var poisoned = [64 << 10]byte([]byte(strings.Repeat("\xdb", 64<<10)))
