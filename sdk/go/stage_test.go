package lanefs_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/share/sharetest"
	lanefs "github.com/lanefs/lanefs/sdk/go"
)

// TestStage: pieces of every size and alignment, more than the stage holds, go into a slice, and back.
func TestStage(t *testing.T) {
	m := sharetest.New(t, 128*mib, 8*mib)
	rng := rand.New(rand.NewPCG(3, 4))
	data := make([]byte, 5*mib+321)
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	f := m.Write("file", data)
	s := connect(t, f)
	file, err := s.Open(f)
	require.NoError(t, err)
	_, err = s.NewStage(lanefs.StageOptions{Size: 100})
	require.ErrorIs(t, err, unix.EINVAL)
	g, err := s.NewStage(lanefs.StageOptions{Size: mib})
	require.NoError(t, err)
	open, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	stages := 0
	for _, d := range open {
		if what, _ := os.Readlink("/proc/self/fd/" + d.Name()); strings.Contains(what, "lanefs-stage") {
			stages++
		}
	}
	require.Equal(t, 1, stages, "the daemon's, in this process; one that the stage keeps may be another file's by the time it is closed")

	var pieces []lanefs.Piece
	at := int64(1)
	for i := range 3000 {
		n := int64(i*13%1500) * int64(1+i%200/199*900) // some of more than a request
		n = min(n, int64(len(data)))
		p := lanefs.Piece{Off: rng.Int64N(int64(len(data)) - n + 1), MemOff: at, Len: n}
		if at+n > 11*mib {
			break
		}
		pieces, at = append(pieces, p), at+n+int64(i%3)
	}
	pieces = append(pieces, lanefs.Piece{Off: int64(len(data)) - 10, MemOff: at, Len: 30}, lanefs.Piece{Off: 1 << 40, MemOff: at + 30, Len: 5})
	plain := bytes.Repeat([]byte("x"), 12*mib)
	want := bytes.Clone(plain)
	results, err := g.Read(file, plain, pieces)
	require.NoError(t, err)
	for i, p := range pieces {
		n := max(min(p.Len, int64(len(data))-p.Off), 0)
		require.Equal(t, n, results[i])
		clear(want[p.MemOff : p.MemOff+p.Len])
		if n > 0 {
			copy(want[p.MemOff:p.MemOff+n], data[p.Off:])
		}
	}
	require.True(t, bytes.Equal(want, plain))

	for i := range plain {
		plain[i] = byte(i * 7)
	}
	writes := []lanefs.Piece{{Off: 0, MemOff: 3, Len: 2*mib + 1}, {Off: 4 * mib, MemOff: 5 * mib, Len: 3 * mib}, {Off: 3 * mib, MemOff: 9, Len: 77}}
	results, err = g.Write(file, plain, writes)
	require.NoError(t, err)
	want = append(bytes.Clone(data), make([]byte, 7*mib-len(data))...)
	for i, p := range writes {
		require.Equal(t, p.Len, results[i])
		copy(want[p.Off:], plain[p.MemOff:p.MemOff+p.Len])
	}
	got, err := os.ReadFile(f.Name())
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got))

	_, err = g.Read(file, plain, []lanefs.Piece{{Len: 1}, {MemOff: 12 * mib, Len: 1}})
	require.ErrorIs(t, err, unix.EINVAL)
	require.ErrorContains(t, err, "piece 1, ")
	readOnly := m.Open("file", os.O_RDONLY)
	r, err := s.Open(readOnly)
	require.NoError(t, err)
	before, err := s.Moved()
	require.NoError(t, err)
	results, err = g.Write(r, plain, []lanefs.Piece{{Len: 10}})
	require.ErrorIs(t, err, unix.EACCES)
	require.Equal(t, []int64{0}, results)
	after, err := s.Moved()
	require.NoError(t, err)
	require.Equal(t, before, after, "what fails moves nothing")

	// A piece whose middle cannot be read has what is before that, and zeroes; its neighbours are whole.
	var reads atomic.Int32
	m.Fail(func(q *blockdev.Request) bool {
		return q.Op == blockdev.OpRead && q.Length() >= mib/4 && reads.Add(1) == 3
	})
	plain = bytes.Repeat([]byte("x"), 2*mib+20)
	results, err = g.Read(file, plain, []lanefs.Piece{{Off: 5, Len: 5}, {Off: 0, MemOff: 16, Len: 2 * mib}, {Off: 7, MemOff: 2*mib + 16, Len: 4}})
	require.ErrorIs(t, err, unix.EIO)
	require.ErrorContains(t, err, "piece 1: ")
	n := results[1]
	require.Equal(t, []int64{5, n, 4}, results)
	require.True(t, 0 < n && n < 2*mib, n)
	require.True(t, bytes.Equal(slices.Concat(want[5:10], []byte("xxxxxxxxxxx"), want[:n], make([]byte, 2*mib-n), want[7:11]), plain))
	require.NoError(t, g.Close())
	_, err = g.Read(file, plain, []lanefs.Piece{{Len: 1}})
	require.ErrorIs(t, err, unix.EBADF)
}

// TestStageNoMemory: slices of memory that the program has taken away give EFAULT, nothing of a write is in the file then, and the stage goes on.
func TestStageNoMemory(t *testing.T) {
	m := sharetest.New(t, 64*mib, 8*mib)
	data := random(7, 2*mib)
	f := m.Write("file", data)
	s := connect(t, f)
	file, err := s.Open(f)
	require.NoError(t, err)
	g, err := s.NewStage(lanefs.StageOptions{Size: mib})
	require.NoError(t, err)
	defer g.Close()
	cut, err := unix.MemfdCreate("cut", 0)
	require.NoError(t, err)
	defer unix.Close(cut)
	for name, take := range map[string]func(b []byte) error{
		"no access": func(b []byte) error { return unix.Mprotect(b, unix.PROT_NONE) },
		"cut":       func([]byte) error { return unix.Ftruncate(cut, 0) },
	} {
		require.NoError(t, unix.Ftruncate(cut, 2*mib))
		b, err := unix.Mmap(cut, 0, 2*mib, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		require.NoError(t, err)
		all := []lanefs.Piece{{Len: 2 * mib}}
		_, err = g.Read(file, b, all)
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, b))
		for i := range b {
			b[i]++
		}
		require.NoError(t, take(b))
		for _, pieces := range [][]lanefs.Piece{{{Len: 1}}, {{Len: 100}, {Off: 100, MemOff: mib, Len: 4096}}, all} {
			_, err = g.Read(file, b, pieces)
			require.ErrorIs(t, err, unix.EFAULT, name)
			n, err := g.Write(file, b, pieces)
			require.ErrorIs(t, err, unix.EFAULT, name)
			require.Equal(t, make([]int64, len(pieces)), n)
		}
		require.NoError(t, unix.Munmap(b))
		good := make([]byte, 2*mib)
		_, err = g.Read(file, good, all)
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, good), "nothing was written")
	}
}
