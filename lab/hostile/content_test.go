package hostile

import (
	"bytes"
	"io"
	"maps"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest/sparse"
)

// content is the content of a device: the chunks that are not all zero, by number. Chunks are replaced, never changed, so that
// copies share them: a sample of 512 MiB needs memory only for its data.
type content struct {
	size   int64
	chunks map[int64][]byte
}

const chunkSize = 4096

var zeroChunk [chunkSize]byte

// newContent reads the stretches of r that hold data.
func newContent(r io.ReaderAt, size int64, data func(func(off, n int64) error) error) (*content, error) {
	c := &content{size: (size + lba - 1) &^ (lba - 1), chunks: map[int64][]byte{}}
	err := data(func(off, n int64) error {
		for k := off / chunkSize; k*chunkSize < off+n; k++ {
			b := make([]byte, chunkSize)
			if _, err := r.ReadAt(b, k*chunkSize); err != nil && err != io.EOF {
				return err
			}
			c.put(k, b)
		}
		return nil
	})
	return c, err
}

// streamed reads r to its end: most of some samples is holes, which need no memory.
func streamed(r io.Reader) (*content, error) {
	c := &content{chunks: map[int64][]byte{}}
	b := make([]byte, chunkSize)
	for k := int64(0); ; k++ {
		n, err := io.ReadFull(r, b)
		c.size += int64(n)
		if n > 0 && !bytes.Equal(b[:n], zeroChunk[:n]) {
			clear(b[n:])
			c.chunks[k], b = b, make([]byte, chunkSize)
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			c.size = (c.size + lba - 1) &^ (lba - 1)
			return c, nil
		} else if err != nil {
			return nil, err
		}
	}
}

func contentOf(b []byte) *content {
	c, err := newContent(bytes.NewReader(b), int64(len(b)), func(f func(off, n int64) error) error { return f(0, int64(len(b))) })
	if err != nil {
		panic(err) // memory can be read
	}
	return c
}

// load reads a file with holes.
func load(t testing.TB, path string) *content {
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	st, err := f.Stat()
	require.NoError(t, err)
	c, err := newContent(f, st.Size(), func(each func(off, n int64) error) error { return sparse.Data(f, st.Size(), each) })
	require.NoError(t, err)
	return c
}

// save writes a file with holes.
func (c *content) save(f *os.File) error {
	if err := f.Truncate(c.size); err != nil {
		return err
	}
	for k, b := range c.chunks {
		if _, err := f.WriteAt(b[:min(chunkSize, c.size-k*chunkSize)], k*chunkSize); err != nil {
			return err
		}
	}
	return nil
}

func (c *content) clone() *content { return &content{c.size, maps.Clone(c.chunks)} }

// put replaces a chunk by b, which must not be changed afterwards.
func (c *content) put(k int64, b []byte) {
	if bytes.Equal(b, zeroChunk[:]) {
		delete(c.chunks, k)
	} else {
		c.chunks[k] = b
	}
}

// read fills p; there are zeroes behind the end.
func (c *content) read(p []byte, off int64) {
	for len(p) > 0 {
		n := 0
		if b := c.chunks[off/chunkSize]; b != nil {
			n = copy(p, b[off%chunkSize:])
		} else {
			n = copy(p, zeroChunk[off%chunkSize:])
		}
		p, off = p[n:], off+int64(n)
	}
}

func (c *content) slice(off, n int64) []byte {
	b := make([]byte, n)
	c.read(b, off)
	return b
}

func (c *content) write(p []byte, off int64) {
	for len(p) > 0 {
		k := off / chunkSize
		b := c.slice(k*chunkSize, chunkSize)
		n := copy(b[off%chunkSize:], p)
		c.put(k, b)
		p, off = p[n:], off+int64(n)
	}
}

func (c *content) zero(off, n int64) {
	for n > 0 {
		part := min(n, chunkSize-off%chunkSize)
		if part == chunkSize {
			delete(c.chunks, off/chunkSize)
		} else {
			c.write(zeroChunk[:part], off)
		}
		off, n = off+part, n-part
	}
}

// TestContent compares content with plain memory.
func TestContent(t *testing.T) {
	const size = 10*chunkSize + lba
	want := make([]byte, size)
	c := contentOf(want)
	for k, w := range []struct {
		off, n int64
		zero   bool
	}{{0, size, false}, {100, 5000, true}, {chunkSize, 3 * chunkSize, true}, {chunkSize - 1, 2, false}, {size - 700, 700, false}} {
		old := c.clone()
		before := old.slice(0, size)
		if w.zero {
			clear(want[w.off : w.off+w.n])
			c.zero(w.off, w.n)
		} else {
			p := bytes.Repeat([]byte{byte('a' + k)}, int(w.n))
			copy(want[w.off:], p)
			c.write(p, w.off)
		}
		require.True(t, bytes.Equal(want, c.slice(0, size)), "step %d", k)
		require.True(t, bytes.Equal(before, old.slice(0, size)), "a copy has changed in step %d", k)
	}
	whole, err := streamed(bytes.NewReader(append(bytes.Clone(want), 7)))
	require.NoError(t, err)
	require.EqualValues(t, size+lba, whole.size)
	require.Equal(t, append(bytes.Clone(want), 7), whole.slice(0, size+1))
	file := saveImage(t, c)
	again := load(t, file)
	require.Equal(t, c.chunks, again.chunks)
	require.EqualValues(t, size, again.size)
}
