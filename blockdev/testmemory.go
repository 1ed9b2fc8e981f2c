package blockdev

import (
	"bytes"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mostTestMemory is how many bytes are kept to be taken again: those of a mount on rings are 32 MiB where there are two CPUs, and new ones cost
// 0.3 s of page faults, or 0.5 s under the race detector.
const mostTestMemory = 64 << 20

// testMemory is what was given back. It is taken again, the first first: the first touch of memory that Go's heap has just got, or got back
// after a collection, is a page fault for each 4 KiB, and these were a third of the time of fs/ext4's tests. When it is taken again, a write
// after the release shows.
var testMemory = struct {
	mu   sync.Mutex
	free map[int][][]byte // protected by mu: by length
	held int              // protected by mu: bytes in free
	slab []byte           // protected by mu: what nobody had
}{free: map[int][][]byte{}}

// poisoned is copied: under the race detector a loop over bytes would take as long as all else that a test does. It is made when it is first
// needed, for this package is in the program too.
var poisoned = sync.OnceValue(func() []byte { return bytes.Repeat([]byte{0xdb}, 64<<10) })

// TestMemory is n bytes for a buffer of a test's device, aligned as pinned memory is and full of 0xdb, so that what was never written shows. It
// panics if it was given back by ReleaseTestMemory, and has changed since.
func TestMemory(n int) []byte {
	if b := oldestTestMemory(n); b != nil {
		for left, want := b, poisoned(); len(left) > 0; {
			k := min(len(left), len(want))
			if !bytes.Equal(left[:k], want[:k]) {
				panic("blockdev: a buffer was written after its release")
			}
			left = left[k:]
		}
		return b
	}
	b := newTestMemory(n)
	poison(b)
	return b
}

// newTestMemory is n bytes that nobody had. Large ones are cut from huge pages, for a page fault for each 4 KiB takes most of the time of a mount.
func newTestMemory(n int) []byte {
	const huge, slab, large = 2 << 20, 32 << 20, 64 << 10
	if n < large || n > slab {
		return alignedMemory(n, pageSize)
	}
	m := &testMemory
	m.mu.Lock()
	defer m.mu.Unlock()
	if n > len(m.slab) {
		m.slab = alignedMemory(slab, huge)
		_ = unix.Madvise(m.slab, unix.MADV_HUGEPAGE) // where there are none, it takes longer
	}
	b := m.slab[:n:n]
	m.slab = m.slab[min((n+pageSize-1)&^(pageSize-1), len(m.slab)):]
	return b
}

// alignedMemory is n bytes that begin at a multiple of to.
func alignedMemory(n, to int) []byte {
	raw := make([]byte, n+to)
	skip := -int(uintptr(unsafe.Pointer(&raw[0]))) & (to - 1)
	return raw[skip : skip+n : skip+n]
}

func oldestTestMemory(n int) (b []byte) {
	m := &testMemory
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.free[n]; len(f) > 0 {
		b, m.free[n] = f[0], f[1:]
		m.held -= n
	}
	return b
}

// ReleaseTestMemory gives back all that TestMemory returned. It is overwritten, so that a read after the release shows.
func ReleaseTestMemory(b []byte) {
	poison(b)
	m := &testMemory
	m.mu.Lock()
	defer m.mu.Unlock()
	n := len(b)
	if m.held+n > mostTestMemory { // all of it, or lengths that nobody takes any more would fill it
		clear(m.free)
		m.held = 0
	}
	if n <= mostTestMemory {
		m.free[n] = append(m.free[n], b)
		m.held += n
	}
}

func poison(b []byte) {
	for len(b) > 0 {
		b = b[copy(b, poisoned()):]
	}
}
