package share_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/share/sharetest"
	lanefs "github.com/lanefs/lanefs/sdk/go"
)

// TestRingWriteFails: of writes that a ring carries out at once each has its own result: the one whose block fails EIO, one that is not
// allowed its errno, all others their bytes. A sync among them ends after them, and the file has what succeeded.
func TestRingWriteFails(t *testing.T) {
	const block, writes = 4096, 48
	m := sharetest.New(t, 64*mib, 16*mib)
	data := bytes.Repeat([]byte("before, "), writes*block/8)
	f := m.Write("file", data)
	s := connect(t, f)
	g := newStage(t, s, f, mib)
	bad := []byte("this block fails")
	m.Fail(func(q *blockdev.Request) bool {
		return q.Op == blockdev.OpWrite && bytes.HasPrefix(q.Bufs[0].Bytes(), bad)
	})
	for round := range 3 {
		var reqs []*lanefs.Request
		for i := range writes {
			at := i * block
			copy(g.bytes[at:at+block], bytes.Repeat([]byte{byte('a' + round), byte(i)}, block/2))
			q := &lanefs.Request{Op: lanefs.OpWrite, File: g.file, Memory: g.memory, Off: int64(at), MemOff: int64(at), Len: block}
			switch i {
			case 5, 40:
				copy(g.bytes[at:], bad)
			case 9:
				q.MemOff = mib
			case 20:
				q.Op, q.Len = lanefs.OpSync, 0
			default:
				copy(data[at:], g.bytes[at:at+block])
			}
			reqs = append(reqs, q)
		}
		g.ring.Start(reqs...)
		for i, q := range reqs {
			err := q.Wait()
			switch i {
			case 5, 40:
				require.ErrorIs(t, err, unix.EIO)
			case 9:
				require.ErrorIs(t, err, unix.EINVAL)
			default:
				require.NoError(t, err, "request %d", i)
				require.Equal(t, q.Len, q.N)
			}
		}
		got, err := os.ReadFile(f.Name())
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, got), "round %d", round)
	}
}

// TestWriterDies: a client that dies while its memory is being written leaves nothing behind, when the writes have ended.
func TestWriterDies(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	data := bytes.Repeat([]byte("x"), mib)
	f := m.Write("file", data)
	before := descriptors(t)
	s := connect(t, f)
	g := newStage(t, s, f, mib)
	copy(g.bytes, data)
	held, release := m.Hold(func(q *blockdev.Request) bool { return q.Op == blockdev.OpWrite && q.Length() == 4096 })
	var reqs []*lanefs.Request
	for i := range int64(64) {
		reqs = append(reqs, &lanefs.Request{Op: lanefs.OpWrite, File: g.file, Memory: g.memory, Off: i * 8192, MemOff: i * 8192, Len: 4096})
	}
	g.ring.Start(reqs...)
	<-held
	g.dies(t, s, release)
	nothingLeft(t, m, before)
	works(t, f, data)
}

// TestWritesWhenFull: writes of rings and commits on a full volume find the blocks of a file that has just been removed, as the kernel's writes do, also those of which its first
// blocks had room.
func TestWritesWhenFull(t *testing.T) {
	const size = 8 * mib
	m := sharetest.New(t, 64*mib, 32*mib)
	target := m.Write("target", nil)
	s := connect(t, target)
	g := newStage(t, s, target, size)
	copied, err := s.Alloc(target, size)
	require.NoError(t, err)
	copy(copied.Bytes(), bytes.Repeat([]byte("commit"), size/6))
	copy(g.bytes, bytes.Repeat([]byte("ring"), size/4))
	fill := func(name string) {
		t.Helper()
		f, err := os.OpenFile(m.Path(name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		require.NoError(t, err)
		defer f.Close()
		for err == nil {
			_, err = f.Write(make([]byte, mib))
		}
		require.ErrorIs(t, err, unix.ENOSPC)
	}
	for range 10 {
		for what, write := range map[string]func() error{
			"ring": func() error {
				q := &lanefs.Request{Op: lanefs.OpWrite, File: g.file, Memory: g.memory, Len: size}
				g.ring.Start(q)
				return q.Wait()
			},
			"commit": func() error { return copied.Commit(target, 0, 0, size) },
		} {
			require.NoError(t, unix.Ftruncate(int(target.Fd()), 0))
			require.NoError(t, os.WriteFile(m.Path("large"), make([]byte, size+mib), 0o600))
			fill("rest")
			require.NoError(t, os.Remove(m.Path("large")))
			require.NoError(t, write(), what)
			got, err := os.ReadFile(target.Name())
			require.NoError(t, err)
			require.Len(t, got, size)
			require.True(t, bytes.HasPrefix(got, []byte(what)))
		}
		require.NoError(t, os.Remove(m.Path("rest")))
	}
}
