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
