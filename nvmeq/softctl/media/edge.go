package media

import (
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu/fault"
)

// edge is the last page of an image in RAM, mapped. While the CPU can read it the image has all that is before it: that takes 50 ns, and asking the
// system for the length takes 300 to 1,500. The page of an image elsewhere may have to be read from a disk or a network, for which no access may wait.
type edge struct {
	page []byte
	at   int64 // offset of page
}

// newEdge gives nil where the page cannot be mapped.
func newEdge(fd int, size int64) *edge {
	page := int64(os.Getpagesize())
	at := (size - 1) / page * page
	b, err := unix.Mmap(fd, at, int(page), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil
	}
	return &edge{b, at}
}

// before says that a range ends before the page, which is there. What is in the page may be cut off within it.
func (e *edge) before(off, n int64) bool { return e != nil && off+n <= e.at && touch(&e.page[0]) }

// touch reads a byte, and says whether it could: an access beyond the end of a file faults (SIGBUS).
func touch(p *byte) bool {
	return fault.Guard(func() { _ = atomic.LoadUint32((*uint32)(unsafe.Pointer(p))) }) == nil
}

func (e *edge) close() {
	if e != nil {
		_ = unix.Munmap(e.page)
	}
}
