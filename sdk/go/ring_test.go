package lanefs_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/share/sharetest"
	"github.com/lanefs/lanefs/gpu"
	lanefs "github.com/lanefs/lanefs/sdk/go"
)

// ringed is a file, memory of the program's own, and a ring between them.
type ringed struct {
	f      *os.File
	file   *lanefs.File
	memory *lanefs.Memory
	bytes  []byte
	ring   *lanefs.Ring
}

func newRinged(t *testing.T, f *os.File, n, entries int) *ringed {
	t.Helper()
	s := connect(t, f)
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	require.NoError(t, unix.Ftruncate(fd, int64(n)))
	r := &ringed{f: f}
	r.bytes, err = unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Munmap(r.bytes) })
	r.memory, err = s.Register(gpu.Export{FD: fd, Size: int64(n), Kind: gpu.ExportMemFD})
	require.NoError(t, err)
	r.file, err = s.Open(f)
	require.NoError(t, err)
	r.ring, err = s.NewRing(entries)
	require.NoError(t, err)
	return r
}

func (r *ringed) request(op lanefs.Op, off, at, n int64) *lanefs.Request {
	return &lanefs.Request{Op: op, File: r.file, Memory: r.memory, Off: off, MemOff: at, Len: n}
}

// TestRing: reads and writes of any alignment, thousands under way from many goroutines, against a copy of the file.
func TestRing(t *testing.T) {
	m := sharetest.New(t, 128*mib, 16*mib)
	data := random(3, 3*mib+77)
	r := newRinged(t, m.Write("file", data), 16*mib, 4096)
	const workers, each = 8, 400
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 1))
			var reqs []*lanefs.Request
			at := int64(w) * 2 * mib
			for range each {
				reqs = append(reqs, r.request(lanefs.OpRead, rng.Int64N(int64(len(data))+5000), at, rng.Int64N(5000)))
				at += reqs[len(reqs)-1].Len
			}
			r.ring.Start(reqs...)
			for _, q := range reqs {
				if err := q.Wait(); err != nil {
					t.Error(err)
				}
				want := data[min(q.Off, int64(len(data))):min(q.Off+q.Len, int64(len(data)))]
				if int64(len(want)) != q.N || !bytes.Equal(want, r.bytes[q.MemOff:q.MemOff+q.N]) {
					t.Errorf("%d bytes at %d of the file, at %d of the memory: %d others", q.Len, q.Off, q.MemOff, q.N)
				}
			}
		})
	}
	wg.Wait()

	// Writes that do not overlap, in any order; then the file has them all, and what was between.
	copy(r.bytes, random(4, 8*mib))
	var reqs []*lanefs.Request
	for off := int64(1); off < int64(len(data)+mib); off += 9001 {
		reqs = append(reqs, r.request(lanefs.OpWrite, off, off*2, 7777))
	}
	rand.Shuffle(len(reqs), func(i, k int) { reqs[i], reqs[k] = reqs[k], reqs[i] })
	require.NoError(t, r.ring.Do(reqs...))
	for _, q := range reqs {
		require.Equal(t, q.Len, q.N)
		data = append(data, make([]byte, max(int(q.Off+q.Len)-len(data), 0))...)
		copy(data[q.Off:], r.bytes[q.MemOff:q.MemOff+q.Len])
	}
	require.NoError(t, r.ring.Do(r.request(lanefs.OpSync, 0, 0, 0)))
	got, err := os.ReadFile(r.f.Name())
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, got))
	require.NoError(t, r.ring.Close())
}

// TestRingHeld: a request that takes long, alone in its ring or not, holds up none that come after it.
func TestRingHeld(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	data := random(6, 2*mib)
	r := newRinged(t, m.Write("file", data), 2*mib, 16)
	for round := range 6 {
		for range round { // small ones, which end at once
			require.NoError(t, r.ring.Do(r.request(lanefs.OpRead, 4096, mib, 4096)))
		}
		var long []*lanefs.Request
		var releases []func()
		for i := range 1 + int64(round%2) { // one after the other: a batch ends as a whole
			held, release := m.Hold(func(q *blockdev.Request) bool { return q.Op == blockdev.OpRead && q.Length() >= mib/4 })
			releases = append(releases, release)
			long = append(long, r.request(lanefs.OpRead, i*mib, i*mib/2, mib/2))
			r.ring.Start(long[i])
			within(t, held)
		}
		ended := make(chan error, 1)
		go func() {
			for i := range int64(3) {
				if err := r.ring.Do(r.request(lanefs.OpRead, i*8192, mib+i*8192, 5000), r.request(lanefs.OpSync, 0, 0, 0)); err != nil {
					ended <- err
					return
				}
			}
			close(ended)
		}()
		require.NoError(t, within(t, ended), "waits for the long one")
		for _, release := range releases {
			release()
		}
		for _, q := range long {
			require.NoError(t, q.Wait())
			require.True(t, bytes.Equal(data[q.Off:q.Off+q.Len], r.bytes[q.MemOff:q.MemOff+q.Len]))
		}
	}
	require.NoError(t, r.ring.Close())
}

// within is what comes from c, which no busy machine should make wait so long.
func within[T any](t *testing.T, c <-chan T) (got T) {
	t.Helper()
	select {
	case got = <-c:
	case <-time.After(2 * time.Minute):
		require.FailNow(t, "nothing comes")
	}
	return got
}

// TestRingReleases: what a request names is released when that has ended, and names nothing from then on.
func TestRingReleases(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	m.Write("file", random(8, mib))
	for name, releases := range map[string]func(r *ringed) error{
		"the memory": func(r *ringed) error { return r.memory.Close() },
		"the file":   func(r *ringed) error { return r.file.Close() },
	} {
		r := newRinged(t, m.Open("file", os.O_RDWR), mib, 16)
		require.NoError(t, r.ring.Do(r.request(lanefs.OpRead, 0, 0, 4096)))
		held, release := m.Hold(func(q *blockdev.Request) bool { return q.Op == blockdev.OpRead })
		q := r.request(lanefs.OpRead, 0, 0, mib)
		r.ring.Start(q)
		within(t, held)
		closed := make(chan error, 1)
		go func() { closed <- releases(r) }()
		select {
		case <-closed:
			require.Fail(t, name+" is released under a request")
		case <-time.After(100 * time.Millisecond): // so long it might do so
		}
		release()
		require.NoError(t, q.Wait())
		require.NoError(t, within(t, closed))
		require.ErrorIs(t, r.ring.Do(r.request(lanefs.OpRead, 0, 0, 4096)), unix.EBADF, name)
		require.NoError(t, r.ring.Close())
	}
}

// TestRingEnds: when the ring is closed all requests end, with many goroutines waiting for many requests. What the daemon had taken it carries out.
func TestRingEnds(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	f := m.Write("file", random(7, mib))
	for range 20 {
		r := newRinged(t, f, mib, 64)
		var wg sync.WaitGroup
		for w := range int64(8) {
			wg.Go(func() {
				for {
					err := r.ring.Do(r.request(lanefs.OpRead, w*4096, w*4096, 4096))
					if err != nil {
						if !errors.Is(err, os.ErrClosed) {
							t.Error(err)
						}
						return
					}
				}
			})
		}
		require.NoError(t, r.ring.Do(r.request(lanefs.OpRead, 0, 0, mib)))
		require.NoError(t, r.ring.Close())
		wg.Wait()
	}
}

// TestRingErrors: each request fails by itself; what is closed ends what waits.
func TestRingErrors(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	m.Write("file", random(5, mib))
	r := newRinged(t, m.Open("file", os.O_RDONLY), mib, 16)
	other := newRinged(t, m.Open("file", os.O_RDONLY), mib, 16)
	for _, c := range []struct {
		q    *lanefs.Request
		want error
	}{
		{r.request(lanefs.OpWrite, 0, 0, 1), unix.EACCES},
		{r.request(lanefs.OpRead, 0, mib, 1), unix.EINVAL},
		{r.request(lanefs.OpRead, 0, 2*mib, 8192), unix.EINVAL},
		{r.request(lanefs.OpRead, 0, mib-4096, 8192), unix.EINVAL},
		{r.request(lanefs.OpRead, -1, 0, 1), unix.EINVAL},
		{r.request(lanefs.OpRead, 0, -1, 1), unix.EINVAL},
		{r.request(lanefs.OpRead, 0, 0, -1), unix.EINVAL},
		{r.request(77, 0, 0, 1), unix.EOPNOTSUPP},
		{&lanefs.Request{Op: lanefs.OpRead, File: r.file, Memory: other.memory, Len: 1}, unix.EINVAL},
		{&lanefs.Request{Op: lanefs.OpRead, File: other.file, Memory: r.memory, Len: 1}, unix.EINVAL},
		{&lanefs.Request{Op: lanefs.OpSync, File: other.file}, unix.EINVAL},
		{&lanefs.Request{Op: lanefs.OpRead, File: r.file, Len: 1}, unix.EBADF},
		{&lanefs.Request{Op: lanefs.OpRead, Memory: r.memory, Len: 1}, unix.EBADF},
		{r.request(lanefs.OpRead, 1<<61, 0, 1), nil},
		{r.request(lanefs.OpRead, 0, mib, 0), nil},
	} {
		require.ErrorIs(t, r.ring.Do(c.q), c.want, "%+v", c.q)
		require.Zero(t, c.q.N)
	}
	blind := newRinged(t, m.Open("file", os.O_WRONLY), mib, 16)
	require.ErrorIs(t, blind.ring.Do(blind.request(lanefs.OpRead, 0, 0, 4096)), unix.EACCES, "the descriptor is not one to read")
	require.Equal(t, make([]byte, mib), blind.bytes)
	require.NoError(t, blind.ring.Do(blind.request(lanefs.OpWrite, 0, 0, 4096)))
	require.NoError(t, blind.ring.Close())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for r.ring.Do(r.request(lanefs.OpRead, 0, 0, mib)) == nil {
			}
		})
	}
	require.NoError(t, r.ring.Do(r.request(lanefs.OpRead, 0, 0, mib)))
	require.NoError(t, r.memory.Close(), "when what names it has ended")
	wg.Wait() // with EBADF
	require.NoError(t, r.ring.Close())
	require.ErrorIs(t, r.ring.Do(r.request(lanefs.OpSync, 0, 0, 0)), os.ErrClosed)
}

// TestClosedTwice: what is closed again lets nothing go that has got its number meanwhile, and a request that names it does not reach that.
func TestClosedTwice(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	f := m.Write("file", random(5, mib))
	r := newRinged(t, f, mib, 16)
	s := connect(t, f)
	file, err := s.Open(f)
	require.NoError(t, err)
	ring, err := s.NewRing(16)
	require.NoError(t, err)
	buffer, err := s.Alloc(f, mib)
	require.NoError(t, err)
	require.NoError(t, ring.Do(&lanefs.Request{Op: lanefs.OpRead, File: file, Buffer: buffer, Len: mib}))

	require.NoError(t, buffer.Close())
	require.ErrorIs(t, buffer.Close(), os.ErrClosed)
	require.ErrorIs(t, buffer.Commit(f, 0, 0, 1), unix.EBADF)
	require.ErrorIs(t, ring.Do(&lanefs.Request{Op: lanefs.OpRead, File: file, Buffer: buffer, Len: 1}), unix.EBADF)
	require.NoError(t, file.Close())
	require.ErrorIs(t, file.Close(), os.ErrClosed)
	require.ErrorIs(t, ring.Do(&lanefs.Request{Op: lanefs.OpSync, File: file}), unix.EBADF)
	require.NoError(t, r.memory.Close())
	require.ErrorIs(t, r.memory.Close(), os.ErrClosed)
	require.ErrorIs(t, r.ring.Do(r.request(lanefs.OpRead, 0, 0, 1)), unix.EBADF)

	require.NoError(t, ring.Close())
	var taken []*os.File // the descriptors that it had, which are others' now
	t.Cleanup(func() {
		for _, f := range taken {
			f.Close()
		}
	})
	for range 16 {
		f, err := os.Open(os.DevNull)
		require.NoError(t, err)
		taken = append(taken, f)
	}
	require.ErrorIs(t, ring.Close(), os.ErrClosed)
	for _, f := range taken {
		_, err := f.Stat()
		require.NoError(t, err)
	}

	shared, err := s.Map(f, 0, mib)
	require.NoError(t, err)
	require.True(t, shared.Current())
	require.NoError(t, shared.Close())
	require.False(t, shared.Current(), "nobody tells any more")
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.Close(), os.ErrClosed)
}

// TestClosedByProgram: a descriptor of Export that the program has closed is another file's by the time the buffer is closed, and stays that file's.
func TestClosedByProgram(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	f := m.Write("file", random(5, mib))
	b, err := connect(t, f).Map(f, 0, 0)
	require.NoError(t, err)
	e, _ := b.Export()
	var null, now unix.Stat_t
	require.NoError(t, unix.Stat(os.DevNull, &null))
	other, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer other.Close()
	require.NoError(t, unix.Dup3(int(other.Fd()), e.FD, unix.O_CLOEXEC))
	defer unix.Close(e.FD)
	require.NoError(t, b.Close())
	require.NoError(t, unix.Fstat(e.FD, &now))
	require.Equal(t, null.Rdev, now.Rdev)
}
