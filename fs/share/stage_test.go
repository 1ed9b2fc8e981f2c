package share_test

import (
	"bytes"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/share/sharetest"
	"github.com/lanefs/lanefs/fs/share/wire"
	"github.com/lanefs/lanefs/gpu"
	lanefs "github.com/lanefs/lanefs/sdk/go"
)

// stage is ordinary memory of a client, as the C library registers it, with a ring and a file.
type stage struct {
	fd     int
	bytes  []byte
	memory *lanefs.Memory
	file   *lanefs.File
	ring   *lanefs.Ring
}

func newStage(t *testing.T, s *lanefs.Session, f *os.File, size int) *stage {
	t.Helper()
	return newStageOf(t, s, f, size, 64)
}

// newStageOf is newStage with a ring of so many entries.
func newStageOf(t *testing.T, s *lanefs.Session, f *os.File, size, entries int) *stage {
	t.Helper()
	g := &stage{}
	var err error
	g.fd, err = unix.MemfdCreate("stage", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(g.fd) })
	require.NoError(t, unix.Ftruncate(g.fd, int64(size)))
	g.bytes, err = unix.Mmap(g.fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	g.memory, err = s.Register(gpu.Export{FD: g.fd, Size: int64(size), Kind: gpu.ExportMemFD})
	require.NoError(t, err)
	g.file, err = s.Open(f)
	require.NoError(t, err)
	g.ring, err = s.NewRing(entries)
	require.NoError(t, err)
	return g
}

func (g *stage) read(off, n int64) *lanefs.Request {
	return &lanefs.Request{Op: lanefs.OpRead, File: g.file, Memory: g.memory, Off: off, Len: n}
}

// TestHostileStage: a client that takes the pages of its stage away while they are read into, and unmaps them, harms nobody; beside it another
// one reads what is in the file. A client finds nothing in a new stage, and cannot name another client's.
func TestHostileStage(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	data := bytes.Repeat([]byte("of the file "), mib/6)
	f := m.Write("file", data)
	honest := connect(t, f)
	for range 4 { // so that its stage has a number of which the other connection has no handle
		newStage(t, honest, f, 4096)
	}
	own := newStage(t, honest, f, mib)
	hostile := connect(t, f)
	bad := newStage(t, hostile, f, mib)
	require.Equal(t, make([]byte, mib), bad.bytes)
	require.NoError(t, unix.Munmap(bad.bytes))

	var stop atomic.Bool
	punched := make(chan struct{})
	go func() {
		defer close(punched)
		for !stop.Load() {
			_ = unix.Fallocate(bad.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, mib)
			_ = unix.Ftruncate(bad.fd, 0) // refused
		}
	}()
	for range 100 {
		_ = bad.ring.Do(bad.read(1, mib-1), bad.read(0, mib)) // whatever comes of it
		clear(own.bytes)
		require.NoError(t, own.ring.Do(own.read(5, mib)))
		require.True(t, bytes.Equal(data[5:5+mib], own.bytes))
	}
	stop.Store(true)
	<-punched

	before := bytes.Clone(own.bytes)
	nameOthers(t, f)
	require.True(t, bytes.Equal(before, own.bytes))
	hostile.Close()
	honest.Close()
	settled(t, m, 0)
	works(t, f, data)
}

// nameOthers is a client that names memory and files by all numbers that other clients have, of which it has one file itself.
func nameOthers(t *testing.T, f *os.File) {
	t.Helper()
	c := dialRing(t, f, 0, 64)
	defer c.Close()
	var all []wire.Submission
	for i := range uint32(64) {
		all = append(all, wire.Submission{Op: wire.OpRead, File: c.file.Handle, Memory: i, Len: mib})
		if i%2 == 0 {
			all[i].Op, all[i].File = wire.OpWrite, i+c.ring.Handle
		}
	}
	c.submit(t, all...)
	within(t, "all answers", func() {
		var done [64]wire.Completion
		for left := len(all); left > 0; {
			n, err := c.rings.Reap(done[:])
			require.NoError(t, err)
			for _, d := range done[:n] {
				require.EqualValues(t, -int64(unix.EBADF), d.Result)
			}
			left -= n
		}
	})
}

// TestStageDies: a client that dies while its stage is read into leaves nothing behind, when the read has ended.
func TestStageDies(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	data := bytes.Repeat([]byte("x"), 4*mib)
	f := m.Write("file", data)
	before := descriptors(t)
	s := connect(t, f)
	g := newStage(t, s, f, 4*mib)
	held, release := m.Hold(func(q *blockdev.Request) bool { return q.Op == blockdev.OpRead })
	g.ring.Start(g.read(0, 4*mib))
	<-held
	g.dies(t, s, release)
	nothingLeft(t, m, before)
	works(t, f, data)
}

// dies ends a client whose stage a request has that is held, as its process's end would: its memory goes first. release lets the request go on.
func (g *stage) dies(t *testing.T, s *lanefs.Session, release func()) {
	require.NoError(t, unix.Munmap(g.bytes))
	require.NoError(t, unix.Close(g.fd))
	g.fd = -1
	ended := make(chan struct{})
	go func() { defer close(ended); s.Close() }()
	release()
	<-ended
}

// nothingLeft waits until no client is left, and checks that none has left anything. before is how many descriptors there were, and those that stay.
func nothingLeft(t *testing.T, m *sharetest.Mount, before int) {
	settled(t, m, 0)
	for _, u := range m.Share.Usage() {
		require.Zero(t, u.Registered)
	}
	require.LessOrEqual(t, descriptors(t), before+slack, "descriptors leak")
}

// TestFlood: a client that keeps its rings full of large requests, and takes no completions of some, does not keep another one from its own:
// whoever may run as an ordinary user has CPUs' and the device's time in common with others, not more of it for ever.
func TestFlood(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	data := bytes.Repeat([]byte("of the file "), 4*mib/12)
	f := m.Write("file", data)
	honest := connect(t, f)
	own := newStage(t, honest, f, 2*mib)
	hostile := connect(t, f)
	var stop atomic.Bool
	var flood sync.WaitGroup
	defer flood.Wait()
	defer stop.Store(true)
	for k := range 4 {
		bad := newStage(t, hostile, f, mib)
		flood.Go(func() {
			var reqs []*lanefs.Request
			for i := range 64 {
				q := bad.read(int64(i)<<12, mib)
				if (i+k)%4 == 0 {
					q.Op, q.Off, q.Len = lanefs.OpWrite, 3*mib+int64(i*4096), 4096
				}
				reqs = append(reqs, q)
			}
			for i := 0; !stop.Load(); i++ { // the ring is full all the time
				q := reqs[i%len(reqs)]
				if i >= len(reqs) {
					_ = q.Wait()
				}
				bad.ring.Start(q)
			}
			for _, q := range reqs {
				_ = q.Wait()
			}
		})
	}
	within := time.AfterFunc(patience, func() {
		_ = unix.Unmount(m.Dir, unix.MNT_DETACH) // who waits for ever does not clean up
		panic("an honest client waits for a flood")
	})
	defer within.Stop()
	for i := range int64(100) {
		clear(own.bytes[:8192])
		require.NoError(t, own.ring.Do(own.read(i*4096, 8192)))
		require.True(t, bytes.Equal(data[i*4096:i*4096+8192], own.bytes[:8192]))
		if i%10 == 0 { // more than one batch, so that workers of its ring's own are needed
			var reqs []*lanefs.Request
			for k := range int64(4) {
				q := own.read(k*mib/2, mib/2)
				q.MemOff = k * mib / 2
				reqs = append(reqs, q)
			}
			require.NoError(t, own.ring.Do(reqs...))
			require.True(t, bytes.Equal(data[:2*mib], own.bytes))
		}
	}
}
