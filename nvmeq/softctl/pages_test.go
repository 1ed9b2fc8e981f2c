package softctl

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu/copyengine"
	"github.com/lanefs/lanefs/nvmeq/softctl/media"
)

// reader reads an image of two chunks and a bit into memory that the CPU cannot address, and holds every read against
// what should be there.
type reader struct {
	*host
	q    *pair
	m    *memory
	at   uint64
	want []byte // the image
}

const (
	readerStep = 1 << 20
	chunkSize  = 32 << 20 // media.Image.ViewSize
)

func newReader(t *testing.T, mover copyengine.Mover, opt Options) *reader {
	const size = 2*chunkSize + readerStep
	path := newImage(t, size)
	r := &reader{want: make([]byte, size)}
	random(8, r.want[:readerStep])
	for off := readerStep; off < size; off += 512 { // no two blocks are the same
		copy(r.want[off:off+512], r.want[off-readerStep:])
		r.want[off] += byte(off / readerStep)
	}
	require.NoError(t, os.WriteFile(path, r.want, 0))
	opt.Mover = mover
	r.host = newHostOn(t, path, opt).enable()
	require.EqualValues(t, chunkSize, r.c.files[0].ViewSize())
	r.q = r.queue(1, 16)
	r.m = newMemory(t, readerStep)
	r.m.hidden = true
	a, err := r.c.Map(r.m, 0, r.m.Size())
	require.NoError(t, err)
	r.at = uint64(a)
	return r
}

func (r *reader) read(off, n int64) {
	r.t.Helper()
	clear(r.m.b)
	r.expect(success, r.q, r.move(2, uint64(off/512), uint32(n/512), r.at))
	require.True(r.t, bytes.Equal(r.want[off:off+n], r.m.b[:n]), "%d bytes at %d", n, off)
}

func (r *reader) pass() {
	r.t.Helper()
	for off := int64(0); off < int64(len(r.want)); off += readerStep {
		r.read(off, readerStep)
	}
}

// pins waits until n chunks are pinned: goroutines of the image's do it.
func (r *reader) pins(p *pinning, n int) {
	r.t.Helper()
	until(r.t, func() bool { return p.count() == n })
}

// What is read a second time comes from the image's own pages, and is what is in the image whatever happens to it.
func TestPages(t *testing.T) {
	p := &pinning{pins: map[*byte]bool{}}
	r := newReader(t, p, Options{})
	r.pass()
	require.Zero(t, p.count(), "read once")
	r.pass()
	r.pins(p, 2) // each whole chunk
	require.EqualValues(t, 2*chunkSize, r.c.Pinned())
	r.pass()
	r.read(chunkSize-512*7, 8192) // from one chunk into the next
	r.read(2*chunkSize-4096, readerStep)
	r.read(512*3, 512)

	// Written.
	b, at := r.alloc(4096)
	random(9, b)
	copy(r.want[chunkSize+4096:], b)
	r.expect(success, r.q, rw(1, 1, (chunkSize+4096)/512, 8).prp(at, 0))
	r.read(chunkSize, readerStep)
	require.Equal(t, 2, p.count())

	// Taken out of the file, in both chunks, and written anew.
	from, n := int64(chunkSize-8192), int64(16384)
	clear(r.want[from : from+n])
	r.expect(success, r.q, rw(8, 1, uint64(from/512), uint32(n/512)))
	require.Zero(t, p.count())
	r.read(from, n)
	for i := range int64(2) {
		copy(r.want[from+i*4096:], b)
		r.expect(success, r.q, rw(1, 1, uint64(from/512+i*8), 8).prp(at, 0))
	}
	r.pass()
	r.pass()
	r.pins(p, 2) // one whole, and of the other what follows its hole, which pinning would fill
	require.EqualValues(t, 2*chunkSize-8192, r.c.Pinned())
	r.read(chunkSize, readerStep)
	var st unix.Stat_t
	require.NoError(t, unix.Stat(r.path, &st))
	require.Less(t, st.Blocks*512, int64(len(r.want)))
	require.NoError(t, r.c.Close())
	require.Zero(t, p.count())
}

// Where no pages can be pinned, reads are staged.
func TestPagesRefused(t *testing.T) {
	p := &pinning{pins: map[*byte]bool{}, err: errors.New("no")}
	r := newReader(t, p, Options{})
	for range 3 {
		r.pass()
	}
	require.Zero(t, r.c.Pinned())
}

// Small reads into host memory are copied from pinned pages, too: no read of the file. Of a truncated one the file says what is left.
func TestPagesIntoHostMemory(t *testing.T) {
	p := &pinning{pins: map[*byte]bool{}}
	r := newReader(t, p, Options{})
	b, at := r.alloc(8192)
	read := func(want Status, off int64) {
		t.Helper()
		clear(b)
		r.expect(want, r.q, rw(opRead, 1, uint64(off/512), uint32(len(b)/512)).prp(at, at+4096))
		if want == success {
			require.True(t, bytes.Equal(r.want[off:off+int64(len(b))], b), "at %d", off)
		}
	}
	for range 2 { // it counts for pinning, as what is read into a device's memory
		for off := int64(0); off < 2*chunkSize; off += int64(len(b)) {
			read(success, off)
		}
	}
	r.pins(p, 2)
	d := &double{Medium: r.c.ns[0].medium}
	r.c.ns[0].medium = d
	for off := int64(0); off < 2*chunkSize; off += 3 * 4096 {
		if off/chunkSize == (off+int64(len(b))-1)/chunkSize {
			read(success, off)
		}
	}
	require.Zero(t, d.reads)
	read(success, chunkSize-4096) // from one chunk into the next
	read(success, 2*chunkSize)    // of none
	require.Equal(t, 2, d.reads)

	require.NoError(t, os.Truncate(r.path, chunkSize+100))
	read(success, chunkSize-8192)
	read(unrecoveredRead|doNotRetry, chunkSize)
	read(unrecoveredRead|doNotRetry, chunkSize+8192)
	require.ErrorIs(t, r.c.Close(), media.ErrTruncated)
}
