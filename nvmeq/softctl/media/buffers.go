package media

import (
	"errors"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Buffers are runs of host memory, in order: the source of a write or the destination of a read. The zero value has none. It can be used
// again after Reset; one goroutine at a time may use it.
type Buffers struct {
	iov []unix.Iovec
	n   int64 // bytes in all runs
	in  int   // all runs are in what Ring.Hold gave this number; 0: they are in nothing of the kind
}

// Reset takes all runs out.
func (b *Buffers) Reset() { b.iov, b.n, b.in = b.iov[:0], 0, 0 }

// Add appends a run.
func (b *Buffers) Add(p []byte) {
	b.iov = append(b.iov, iovec(p))
	b.n += int64(len(p))
}

// In says that all runs are within memory to which a ring's Hold has given a number. It holds until Reset.
func (b *Buffers) In(held int) { b.in = held }

// gather copies all bytes to p, which is long enough.
func (b *Buffers) gather(p []byte) {
	for _, v := range b.iov {
		p = p[copy(p, bytesOf(v)):]
	}
}

// iovMax is how many runs one preadv2 takes (IOV_MAX).
const iovMax = 1024

// errShort is a file that ends before the image does.
var errShort = errors.New("the image ends here")

// each calls f until all bytes have been moved. f moves some bytes of the runs that it is given, at an offset of the image, and says how
// many.
func (b *Buffers) each(off int64, f func([]unix.Iovec, int64) (int64, error)) error {
	rest := b.iov
	for len(rest) > 0 {
		n, err := f(rest[:min(len(rest), iovMax)], off)
		if err != nil {
			return err
		}
		if n == 0 {
			return errShort
		}
		off += n
		for n > 0 && uint64(n) >= rest[0].Len {
			n -= int64(rest[0].Len)
			rest = rest[1:]
		}
		if n > 0 { // it moved a part of a run, which is rare; the runs must stay as they are
			rest = slices.Clone(rest)
			rest[0] = iovec(bytesOf(rest[0])[n:])
		}
	}
	return nil
}

func iovec(b []byte) unix.Iovec {
	return unix.Iovec{Base: unsafe.SliceData(b), Len: uint64(len(b))}
}

func bytesOf(v unix.Iovec) []byte { return unsafe.Slice(v.Base, v.Len) }
