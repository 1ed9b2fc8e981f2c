// Package poison is the memory of test devices' buffers. It is full of 0xdb when it is taken and when it is given back, so that what was
// never written shows, and a read after a release. It is taken again, the first that was given back first: the first touch of memory that Go's
// heap has just got, or got back after a collection, is a page fault for each 4 KiB, and these were a third of the time of fs/ext4's tests.
// When it is taken again, a write after the release shows too.
package poison

import (
	"bytes"
	"sync"
	"unsafe"
)

const (
	align = 4096     // as pinned memory has it
	most  = 32 << 20 // bytes that are kept to be taken again
)

var (
	mu   sync.Mutex
	free = map[int][][]byte{} // protected by mu: by length
	held int                  // protected by mu: bytes in free
)

// poisoned is copied: under the race detector a loop over bytes would take as long as all else that a test does. It is made when it is first
// needed, for package blockdev is in the program too.
var poisoned = sync.OnceValue(func() []byte { return bytes.Repeat([]byte{0xdb}, 64<<10) })

// Take returns n bytes, aligned to 4 KiB. It panics if they have changed since they were given back.
func Take(n int) []byte {
	if b := oldest(n); b != nil {
		for left, want := b, poisoned(); len(left) > 0; {
			k := min(len(left), len(want))
			if !bytes.Equal(left[:k], want[:k]) {
				panic("blockdev: a buffer was written after its release")
			}
			left = left[k:]
		}
		return b
	}
	raw := make([]byte, n+align)
	skip := -int(uintptr(unsafe.Pointer(&raw[0]))) & (align - 1)
	b := raw[skip : skip+n : skip+n]
	fill(b)
	return b
}

func oldest(n int) (b []byte) {
	mu.Lock()
	defer mu.Unlock()
	if f := free[n]; len(f) > 0 {
		b, free[n] = f[0], f[1:]
		held -= n
	}
	return b
}

// Give gives back all that Take returned. It is overwritten.
func Give(b []byte) {
	fill(b)
	mu.Lock()
	defer mu.Unlock()
	n := len(b)
	if held+n > most { // all of it, or lengths that nobody takes any more would fill it
		clear(free)
		held = 0
	}
	if n <= most {
		free[n] = append(free[n], b)
		held += n
	}
}

func fill(b []byte) {
	for len(b) > 0 {
		b = b[copy(b, poisoned()):]
	}
}
