package share_test

import (
	"bytes"
	"os"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/share/sharetest"
	"github.com/lanefs/lanefs/fs/share/wire"
	lanefs "github.com/lanefs/lanefs/sdk/go"
)

// largeRing is a ring, and memory of n bytes for what it reads of a file.
func largeRing(t *testing.T, f *os.File, n int64) (*lanefs.File, *lanefs.Buffer, *lanefs.Ring) {
	t.Helper()
	s := connect(t, f)
	file, err := s.Open(f)
	require.NoError(t, err)
	b, err := s.Alloc(f, n)
	require.NoError(t, err)
	t.Cleanup(func() { b.Close() })
	ring, err := s.NewRing(8)
	require.NoError(t, err)
	t.Cleanup(func() { ring.Close() })
	return file, b, ring
}

// TestLargeRead: a request that is read in parts at once has all bytes, ends at the file's end, and fails if any part does.
func TestLargeRead(t *testing.T) {
	m := sharetest.New(t, 128*mib, 64*mib)
	data := noise(7, 37*mib+777)
	file, b, ring := largeRing(t, m.Write("file", data), 48*mib)
	read := func(off, at, n int64) (int64, error) {
		q := &lanefs.Request{Op: lanefs.OpRead, File: file, Buffer: b, Off: off, MemOff: at, Len: n}
		err := ring.Do(q)
		return q.N, err
	}
	for _, r := range [][3]int64{{0, 0, 37 * mib}, {0, 0, 48 * mib}, {5, 3, 47 * mib}, {20 * mib, mib, 17*mib + 778}} {
		want := data[r[0]:min(int64(len(data)), r[0]+r[2])]
		clear(b.Bytes())
		n, err := read(r[0], r[1], r[2])
		require.NoError(t, err)
		require.EqualValues(t, len(want), n)
		require.True(t, bytes.Equal(want, b.Bytes()[r[1]:][:n]))
		require.Zero(t, bytes.Count(b.Bytes()[r[1]+n:], []byte{0})-len(b.Bytes()[r[1]+n:]), "bytes behind the file's end")
	}
	n, err := read(40*mib, 0, 48*mib)
	require.NoError(t, err)
	require.Zero(t, n)

	var large atomic.Int32
	m.Fail(func(q *blockdev.Request) bool {
		return q.Op == blockdev.OpRead && q.Length() >= mib && large.Add(1) == 4
	})
	_, err = read(0, 0, 37*mib)
	require.ErrorIs(t, err, unix.EIO)
	n, err = read(0, 0, 37*mib)
	require.NoError(t, err)
	require.EqualValues(t, 37*mib, n)
	require.NoError(t, os.Truncate(m.Path("file"), 3))
	n, err = read(0, 0, 37*mib)
	require.NoError(t, err)
	require.EqualValues(t, 3, n)
}

// TestLargeTogether: a large read alone is read in parts, several at once each as a whole.
func TestLargeTogether(t *testing.T) {
	const each, at = 20 * mib, 6
	m := sharetest.New(t, 128*mib, 64*mib)
	data := noise(8, each+4096)
	file, b, ring := largeRing(t, m.Write("file", data), 2*each)
	var longest atomic.Int64
	m.Fail(func(q *blockdev.Request) bool {
		for n := int64(q.Length()); ; {
			if was := longest.Load(); q.Op != blockdev.OpRead || n <= was || longest.CompareAndSwap(was, n) {
				return false
			}
		}
	})
	for n := 1; n <= at; n += at - 1 {
		longest.Store(0)
		clear(b.Bytes())
		requests := make([]*lanefs.Request, n)
		for i := range requests {
			requests[i] = &lanefs.Request{Op: lanefs.OpRead, File: file, Buffer: b, Off: 4096, MemOff: int64(i%2) * each, Len: each}
		}
		require.NoError(t, ring.Do(requests...))
		for _, q := range requests {
			require.EqualValues(t, each, q.N)
		}
		require.True(t, bytes.Equal(data[4096:], b.Bytes()[:each]))
		require.Equal(t, n == 1, longest.Load() <= 16*mib, "%d at once: %d bytes", n, longest.Load())
	}
}

// TestLargeWrite: a commit, and a ring's write, of more than is written at once has all bytes, where they belong.
func TestLargeWrite(t *testing.T) {
	const n, at, off = 65*mib + 77, 4099, 777
	m := sharetest.New(t, 256*mib, 16*mib)
	f := m.Write("file", nil)
	c := dialRing(t, f, 66*mib, 8)
	memory, err := unix.Mmap(c.memfd, 0, 66*mib, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(memory)) }()
	check := func(what string) {
		t.Helper()
		got, err := os.ReadFile(m.Path("file"))
		require.NoError(t, err)
		require.Len(t, got, off+n, what)
		require.True(t, bytes.Equal(memory[at:at+n], got[off:]), what)
	}
	copy(memory, noise(1, 66*mib))
	var r wire.CommitReply
	_, err = c.Call(wire.TCommit, 4, &wire.Commit{Handle: c.memory.Handle, MemOff: at, FileOff: off, Len: n}, &r, 0, int(f.Fd()))
	require.NoError(t, err)
	require.EqualValues(t, n, r.Written)
	check("a commit")

	copy(memory, noise(2, 66*mib))
	c.submit(t, wire.Submission{Op: wire.OpWrite, File: c.file.Handle, Memory: c.memory.Handle, MemOff: at, FileOff: off, Len: n})
	var done [1]wire.Completion
	within(t, "the write", func() {
		for k := 0; k == 0; k, _ = c.rings.Reap(done[:]) {
		}
	})
	require.EqualValues(t, n, done[0].Result)
	check("a write")
}
