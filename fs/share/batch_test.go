package share_test

import (
	"bytes"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/share/sharetest"
	"github.com/lanefs/lanefs/fs/share/wire"
	lanefs "github.com/lanefs/lanefs/sdk/go"
)

// TestBatchOfFiles: of reads and writes of several files that are carried out at once each is what it is, of its own file.
func TestBatchOfFiles(t *testing.T) {
	const files, block, each = 4, 4096, 16
	m := sharetest.New(t, 64*mib, 16*mib)
	var have [files][]byte
	var opened [files]*lanefs.File
	names := []string{"a", "b", "c", "d"}
	for i, name := range names {
		have[i] = noise(byte(i), each*block)
		m.Write(name, have[i])
	}
	s := connect(t, m.Open("a", os.O_RDWR))
	for i, name := range names {
		var err error
		opened[i], err = s.Open(m.Open(name, os.O_RDWR))
		require.NoError(t, err)
	}
	g := newStage(t, s, m.Open("a", os.O_RDWR), files*each*block)
	var reqs []*lanefs.Request // of every other block a read, of the others a write
	for k := range each {
		for i := range files {
			at := int64(len(reqs) * block)
			q := &lanefs.Request{Op: lanefs.OpRead, File: opened[i], Memory: g.memory, Off: int64(k * block), MemOff: at, Len: block}
			if (i+k)%2 == 1 {
				q.Op = lanefs.OpWrite
				copy(g.bytes[at:at+block], noise(byte(10+len(reqs)), block))
				copy(have[i][k*block:], g.bytes[at:at+block])
			}
			reqs = append(reqs, q)
		}
	}
	require.NoError(t, g.ring.Do(reqs...))
	for n, q := range reqs {
		require.EqualValues(t, block, q.N)
		require.True(t, bytes.Equal(have[n%files][q.Off:q.Off+block], g.bytes[q.MemOff:q.MemOff+block]), "request %d", n)
	}
	for i, name := range names {
		got, err := os.ReadFile(m.Path(name))
		require.NoError(t, err)
		require.True(t, bytes.Equal(have[i], got), name)
	}
}

// TestManyAtOnce: of thousands of requests that wait, while the device answers nothing, each has its result in the end.
func TestManyAtOnce(t *testing.T) {
	const many, block = 8192, 4096
	m := sharetest.New(t, 64*mib, 16*mib)
	data := noise(1, 4*mib)
	f := m.Write("file", data)
	c := dialRing(t, f, 4*mib, many)
	held, release := m.Hold(func(q *blockdev.Request) bool { return q.Op == blockdev.OpRead })
	var subs []wire.Submission
	for i := range uint64(many) {
		at := i * block % (4 * mib)
		subs = append(subs, wire.Submission{Data: i, Op: wire.OpRead, File: c.file.Handle, Memory: c.memory.Handle, FileOff: at, MemOff: at, Len: block})
	}
	c.submit(t, subs...)
	<-held
	within(t, "all are taken", func() {
		for c.rings.Word32(64).Load() != many {
		}
	})
	release()
	answered := map[uint64]bool{}
	within(t, "all answers", func() {
		var done [64]wire.Completion
		for len(answered) < many {
			n, err := c.rings.Reap(done[:])
			if err != nil {
				t.Error(err)
				return
			}
			for _, d := range done[:n] {
				if d.Result != block || answered[d.Data] {
					t.Errorf("%+v", d)
					return
				}
				answered[d.Data] = true
			}
		}
	})
	mem := make([]byte, len(data))
	_, err := unix.Pread(c.memfd, mem, 0)
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, mem))
}

// TestDurable: what was committed, and what a sync follows in one batch, is durable: the drive has been told to store it after it was written.
func TestDurable(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	f := m.Write("file", noise(1, mib))
	s := connect(t, f)
	g := newStage(t, s, f, mib)
	mark := noise(3, 4096)
	var mu sync.Mutex
	written, stored := false, false // protected by mu
	m.Hold(func(q *blockdev.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case q.Op == blockdev.OpWrite && bytes.Equal(q.Bufs[0].Bytes()[:min(q.Bufs[0].N, len(mark))], mark):
			written, stored = true, q.FUA
		case q.Op == blockdev.OpFlush:
			stored = true
		}
		return false
	})
	durable := func(what string) {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, []bool{true, true}, []bool{written, stored}, what)
		written, stored = false, false
	}
	b, err := s.Alloc(f, 4096)
	require.NoError(t, err)
	copy(b.Bytes(), mark)
	copy(g.bytes, mark)
	for round := range int64(3) { // what replaces blocks, and what extends the file
		require.NoError(t, b.Commit(f, round*mib/2, 0, 4096))
		durable("a commit")
		require.NoError(t, g.ring.Do(&lanefs.Request{Op: lanefs.OpWrite, File: g.file, Memory: g.memory, Off: round * mib / 2, Len: 4096},
			&lanefs.Request{Op: lanefs.OpSync, File: g.file}))
		durable("a write and a sync")
	}
}
