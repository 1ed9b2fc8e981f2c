package share_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/share/sharetest"
	"github.com/lanefs/lanefs/fs/share/wire"
	lanefs "github.com/lanefs/lanefs/sdk/go"
)

// noise is bytes that are nowhere twice.
func noise(seed byte, n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{seed})
	_, _ = r.Read(b)
	return b
}

// TestUnreached: where the controller reaches no memory of programs and none of the pool's, maps, rings and commits move the same bytes, by
// the pool's stage; and client and daemon say so.
func TestUnreached(t *testing.T) {
	m := sharetest.NewUnreached(t, 128*mib, 48*mib)
	data := noise(1, 13*mib+777)
	f := m.Write("file", data)
	s := connect(t, f)

	for _, r := range [][2]int64{{0, 0}, {1, 0}, {4097, 9*mib + 3}, {13 * mib, 777}, {5, 1}} {
		b, err := s.Map(f, r[0], r[1])
		require.NoError(t, err)
		want := data[r[0]:]
		if r[1] > 0 {
			want = want[:r[1]]
		}
		require.True(t, bytes.Equal(want, b.Bytes()))
		require.NoError(t, b.Close())
	}
	sparse := m.Open("sparse", os.O_CREATE|os.O_RDWR)
	_, err := sparse.WriteAt(data[:5000], 6*mib+1)
	require.NoError(t, err)
	b, err := s.Map(sparse, 0, 0)
	require.NoError(t, err)
	require.True(t, bytes.Equal(append(make([]byte, 6*mib+1), data[:5000]...), b.Bytes()))
	require.NoError(t, b.Close())

	p, err := s.MapPrivate(f, 3, 9*mib)
	require.NoError(t, err)
	copy(p.Bytes(), data[100:])
	require.NoError(t, p.Commit(f, 3, 0, 9*mib))
	copy(data[3:], bytes.Clone(data[100:100+9*mib]))
	require.NoError(t, p.Commit(f, 4*mib, 4096, 4*mib+8192)) // whole blocks go as they are
	copy(data[4*mib:], p.Bytes()[4096:4*mib+12288])

	file, err := s.Open(f)
	require.NoError(t, err)
	ring, err := s.NewRing(256)
	require.NoError(t, err)
	now := bytes.Clone(p.Bytes())
	rng := rand.New(rand.NewPCG(1, 2))
	var reads []*lanefs.Request
	for at := int64(0); at < 7*mib; { // pieces of every alignment, some larger than a part of the stage, some behind the end
		n := min([]int64{1, 511, 4096, 5000, 70_000, 5 * mib}[rng.IntN(6)], 9*mib-at)
		off := rng.Int64N(int64(len(data)) + 1000)
		reads = append(reads, &lanefs.Request{Op: lanefs.OpRead, File: file, Buffer: p, Off: off, MemOff: at, Len: n})
		if off < int64(len(data)) {
			copy(now[at:at+n], data[off:])
		}
		at += n
	}
	reads = append(reads, &lanefs.Request{Op: lanefs.OpRead, File: file, Buffer: p, Off: 5, MemOff: 7}) // of nothing
	require.NoError(t, ring.Do(reads...))
	for _, q := range reads {
		require.Equal(t, max(min(q.Len, int64(len(data))-q.Off), 0), q.N)
	}
	require.True(t, bytes.Equal(now, p.Bytes()))
	writes := []*lanefs.Request{{Off: 1, MemOff: 7, Len: 6 * mib}, {Off: 12 * mib, MemOff: 5, Len: 2 * mib}, {Off: 7 * mib, MemOff: 0, Len: 100}, {Off: 7*mib + 103, MemOff: 3, Len: 4*mib + 9000}}
	for _, q := range writes {
		q.Op, q.File, q.Buffer = lanefs.OpWrite, file, p
		if n := int(q.Off + q.Len); n > len(data) {
			data = append(data, make([]byte, n-len(data))...)
		}
		copy(data[q.Off:], now[q.MemOff:q.MemOff+q.Len])
	}
	require.NoError(t, ring.Do(writes...))
	got, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<40))
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, got))

	moved, err := s.Moved()
	require.NoError(t, err)
	require.Contains(t, moved.Unreached, "does not reach device-vmm memory")
	require.EqualValues(t, len(reads)+len(writes), moved.Copied.Requests)
	require.Zero(t, moved.Device.Requests+moved.Stage.Requests)
	require.NotZero(t, m.Pool.Stats().Staged)
	require.Contains(t, m.Pool.Stats().Unreached, "does not reach device-vmm memory")
	require.Equal(t, moved.Copied.Bytes, m.Share.Moved().Copied.Bytes)
	other := connect(t, f)
	moved, err = other.Moved()
	require.NoError(t, err)
	require.Zero(t, moved.Copied, "another session's")
	require.NoError(t, other.Close())
}

// TestUnreachedBeside: requests to memory that the controller reaches go beside those to memory that it does not, in one batch, and each gets its own bytes.
func TestUnreachedBeside(t *testing.T) {
	m := sharetest.NewBeside(t, 64*mib, 16*mib)
	data := noise(5, 3*mib)
	f := m.Write("file", data)
	s := connect(t, f)
	g := newStage(t, s, f, 2*mib)
	own, err := s.Alloc(f, 2*mib)
	require.NoError(t, err)
	const many, each = 60, 5000
	for round := range int64(20) {
		var reads []*lanefs.Request
		for i := range int64(many) {
			q := &lanefs.Request{Op: lanefs.OpRead, File: g.file, Off: round*1000 + i*each*3 + i%5, MemOff: i * (each + i), Len: each}
			if (i+round)%3 == 0 {
				q.Buffer = own
			} else {
				q.Memory = g.memory
			}
			reads = append(reads, q)
		}
		require.NoError(t, g.ring.Do(reads...))
		for _, q := range reads {
			to := g.bytes
			if q.Buffer != nil {
				to = own.Bytes()
			}
			require.EqualValues(t, each, q.N)
			require.True(t, bytes.Equal(data[q.Off:q.Off+each], to[q.MemOff:q.MemOff+each]))
			clear(to[q.MemOff : q.MemOff+each])
		}
	}
	moved, err := s.Moved()
	require.NoError(t, err)
	require.EqualValues(t, 20*many/3, moved.Copied.Requests)
	require.EqualValues(t, 20*many*2/3, moved.Device.Requests)
}

// TestUnreachedGrows: a range that ends in one part of the stage ends there, though the file has grown before the next part is read.
func TestUnreachedGrows(t *testing.T) {
	m := sharetest.NewUnreached(t, 64*mib, 16*mib)
	const size, whole = 3*mib + 77, 11 * mib
	data := noise(6, whole)
	f := m.Write("file", data[:size])
	s := connect(t, f)
	file, err := s.Open(f)
	require.NoError(t, err)
	own, err := s.Alloc(f, whole)
	require.NoError(t, err)
	ring, err := s.NewRing(8)
	require.NoError(t, err)
	grows := func() {
		if _, err := f.WriteAt(data[size:], size); err != nil {
			t.Error(err)
		}
	}
	m.Copier.Before.Store(&grows)
	q := &lanefs.Request{Op: lanefs.OpRead, File: file, Buffer: own, Len: whole}
	require.NoError(t, ring.Do(q))
	require.EqualValues(t, size, q.N)
	require.Nil(t, m.Copier.Before.Load(), "it has grown")
	require.True(t, bytes.Equal(append(data[:size:size], make([]byte, whole-size)...), own.Bytes()))
	require.NoError(t, ring.Do(q))
	require.EqualValues(t, whole, q.N)
	require.True(t, bytes.Equal(data, own.Bytes()))
}

// TestMapOfGrowing: a file that grows or shrinks while it is mapped to its end is mapped to the end that it has then, or the mapping is not current.
func TestMapOfGrowing(t *testing.T) {
	m := sharetest.NewUnreached(t, 64*mib, 32*mib)
	const size = mib + 77
	data := noise(8, 3*mib)
	for _, to := range []int{size + 1, 3 * mib, size - 1, 5} {
		f := m.Write("file", data[:size])
		s := connect(t, f)
		changes := func() {
			_, err := f.WriteAt(data[size:max(size, to)], size)
			if err = errors.Join(err, f.Truncate(int64(to))); err != nil {
				t.Error(err)
			}
		}
		m.Copier.Before.Store(&changes)
		b, err := s.Map(f, 0, 0)
		require.NoError(t, err)
		require.Nil(t, m.Copier.Before.Load())
		require.True(t, b.Current())
		require.EqualValues(t, []int64{int64(to), int64(to)}, []int64{b.Len(), b.FileSize()})
		require.True(t, bytes.Equal(data[:to], b.Bytes()))
		require.NoError(t, b.Close())

		// A part, behind which it grows, is what it was; of one that it no longer has not all is there.
		m.Copier.Before.Store(&changes)
		require.NoError(t, f.Truncate(size))
		part, err := s.Map(f, 1, size-1)
		require.NoError(t, err)
		require.Equal(t, to >= size, part.Current())
		require.EqualValues(t, size-1, part.Len())

		// It is never the same twice: one that has been longer or shorter meanwhile is not current, though its size is what it was.
		next := int64(size + 1)
		for range 20 {
			var again func()
			again = func() {
				next++
				if err := f.Truncate(next); err != nil {
					t.Error(err)
				}
				m.Copier.Before.Store(&again)
			}
			m.Copier.Before.Store(&again)
			b, err = s.Map(f, 0, 0)
			m.Copier.Before.Store(nil)
			require.NoError(t, err)
			st, err := f.Stat()
			require.NoError(t, err)
			require.Equal(t, b.Current(), st.Size() == b.Len())
			require.NoError(t, b.Close())
		}
		require.NoError(t, part.Close())
		for _, u := range m.Share.Usage() {
			require.Zero(t, u.Held, "each try was charged once")
		}
		require.NoError(t, s.Close())
	}
}

// TestMapOfGrowingFile: a file that is longer after each try to map it is mapped in the end, and that is not current.
func TestMapOfGrowingFile(t *testing.T) {
	m := sharetest.NewUnreached(t, 64*mib, 32*mib)
	f := m.Write("file", noise(8, mib))
	s := connect(t, f)
	var loads atomic.Int64
	var grows func()
	grows = func() { // while it is read first, but not while it is read again
		n := loads.Add(1)
		if n%2 == 1 {
			if _, err := f.WriteAt([]byte("more"), mib+n); err != nil {
				t.Error(err)
			}
		}
		if n < 100 {
			m.Copier.Before.Store(&grows)
		}
	}
	m.Copier.Before.Store(&grows)
	b, err := s.Map(f, 0, 0)
	require.NoError(t, err)
	require.EqualValues(t, 8, loads.Load())
	require.False(t, b.Current())
	st, err := f.Stat()
	require.NoError(t, err)
	require.Less(t, b.Len(), st.Size())
	m.Copier.Before.Store(nil)
	b, err = s.Map(f, 0, 0)
	require.NoError(t, err)
	require.True(t, b.Current())
	require.Equal(t, st.Size(), b.Len())
}

// TestNoMapNoNotice: a map that fails leaves no generation on the notice board, though the file has changed meanwhile.
func TestNoMapNoNotice(t *testing.T) {
	m := sharetest.NewUnreached(t, 64*mib, 32*mib)
	f := m.Write("file", noise(8, mib))
	c := dial(t, f)
	rights := hello(t, c)
	defer wire.CloseAll(rights)
	board, err := wire.MapShared(rights[0], 8*wire.Slots, false)
	require.NoError(t, err)
	defer board.Close()
	broken := errors.New("the copy engine does not answer")
	for _, c2 := range []struct {
		changes func()
		errno   error
	}{
		{func() { _, _ = f.WriteAt([]byte("new"), 7); m.Copier.Fail.Store(&broken) }, unix.EIO},
		{func() { _ = f.Truncate(3) }, unix.EINVAL},
	} {
		m.Copier.Before.Store(&c2.changes)
		_, err = c.Call(wire.TMap, 1, &wire.Map{Off: 5}, &wire.MapReply{}, 1, int(f.Fd()))
		require.ErrorIs(t, err, c2.errno)
		m.Copier.Fail.Store(nil)
		for i := range wire.Slots {
			require.Zero(t, board.Word(8*i).Load())
		}
		for _, u := range m.Share.Usage() {
			require.Zero(t, u.Held+int64(u.Handles))
		}
	}
	for _, r := range m.Pool.Stats().Residents {
		require.Zero(t, r.Holders)
	}
}

// TestUnreachedShrinks: of a file that becomes shorter while it is read into memory that was another's a program gets what is left, and zeroes.
func TestUnreachedShrinks(t *testing.T) {
	m := sharetest.NewUsed(t, 64*mib, 16*mib)
	data := noise(7, 6*mib)
	for _, private := range []bool{false, true} {
		f := m.Write("file", data)
		s := connect(t, f)
		shrinks := func() {
			if err := f.Truncate(mib + 5); err != nil {
				t.Error(err)
			}
		}
		m.Copier.Before.Store(&shrinks)
		get := s.Map
		if private {
			get = s.MapPrivate
		}
		const off, n = 1, 4 * mib // one byte more than fits into a part of the stage, which is read when the file is short
		b, err := get(f, off, n)
		require.NoError(t, err)
		e, at := b.Export()
		mem, err := unix.Mmap(e.FD, e.Offset, int(e.Size), unix.PROT_READ, unix.MAP_SHARED)
		require.NoError(t, err)
		want := make([]byte, e.Size)
		copy(want[at:], data[off:mib+5])
		if private { // the first part has what there was
			copy(want[at:], data[off:off+4*mib-1])
		}
		require.True(t, bytes.Equal(want, mem))
		require.NoError(t, unix.Munmap(mem))
		require.NoError(t, b.Close())
		require.NoError(t, s.Close())
	}
}

// TestUnreachedDriveFails: what the drive does not read or write on one side of the stage is an error on the other, not bytes that are not there.
func TestUnreachedDriveFails(t *testing.T) {
	m := sharetest.NewUnreached(t, 64*mib, 32*mib)
	data := noise(4, 10*mib)
	mark := noise(9, 64) // of what is not written, in the second part of the stage
	f := m.Write("file", data)
	s := connect(t, f)
	file, err := s.Open(f)
	require.NoError(t, err)
	own, err := s.MapPrivate(f, 0, 9*mib)
	require.NoError(t, err)
	ring, err := s.NewRing(8)
	require.NoError(t, err)
	var fails atomic.Bool
	m.Fail(func(q *blockdev.Request) bool {
		return fails.Load() && (q.Op == blockdev.OpRead && q.Length() >= mib/2 || q.Op == blockdev.OpWrite && bytes.Contains(q.Bufs[0].Bytes(), mark))
	})
	fails.Store(true)
	_, err = s.Map(f, 0, 0)
	require.ErrorIs(t, err, unix.EIO)
	q := &lanefs.Request{Op: lanefs.OpRead, File: file, Buffer: own, Len: 9 * mib}
	require.ErrorIs(t, ring.Do(q), unix.EIO)
	copy(own.Bytes()[5*mib:], mark)
	require.ErrorIs(t, own.Commit(f, 0, 0, 9*mib), unix.EIO)
	q = &lanefs.Request{Op: lanefs.OpWrite, File: file, Buffer: own, Len: 9 * mib}
	require.ErrorIs(t, ring.Do(q), unix.EIO)

	fails.Store(false)
	require.NoError(t, own.Commit(f, 0, 0, 9*mib))
	copy(data, own.Bytes()[:9*mib])
	b, err := s.Map(f, 0, 0)
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, b.Bytes()))
}

// TestUnreachedFails: of a copy that failed nobody gets bytes: the range is an error, and the part of the stage that the copy may still
// use is not used again. When no part is left that is an error, too; clients that use no stage go on.
func TestUnreachedFails(t *testing.T) {
	m := sharetest.NewUnreached(t, 64*mib, 16*mib)
	data := noise(2, 2*mib)
	f := m.Write("file", data)
	s := connect(t, f)
	broken := errors.New("the copy engine does not answer")
	for i := range 2 {
		m.Copier.Fail.Store(&broken)
		_, err := s.Map(f, 0, 0)
		require.ErrorIs(t, err, unix.EIO)
		require.ErrorContains(t, err, "does not answer")
		m.Copier.Fail.Store(nil)
		b, err := s.Map(f, 0, int64(mib+i))
		require.NoError(t, err)
		require.True(t, bytes.Equal(data[:mib+i], b.Bytes()))
		require.NoError(t, b.Close())
	}
	m.Copier.Fail.Store(&broken)
	for range 14 {
		_, err := s.Map(f, 0, 0)
		require.ErrorContains(t, err, "does not answer")
	}
	m.Copier.Fail.Store(nil)
	_, err := s.Map(f, 7, 0)
	require.ErrorContains(t, err, "all of the stage is lost")
	got, err := os.ReadFile(f.Name())
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, got))
}

// TestUnreachedParallel: more transfers than the stage has parts wait for one another, and get the right bytes.
func TestUnreachedParallel(t *testing.T) {
	m := sharetest.NewUnreached(t, 128*mib, 64*mib)
	data := noise(3, 9*mib)
	f := m.Write("file", data)
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			s, err := lanefs.Connect(f)
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			for k := range 3 {
				off := int64(1000*i + k)
				b, err := s.Map(f, off, 7*mib)
				if err != nil {
					t.Error(err)
				} else if !bytes.Equal(data[off:off+7*mib], b.Bytes()) {
					t.Error("other bytes")
				}
				if b != nil {
					b.Close()
				}
			}
		})
	}
	wg.Wait()
}

// TestUnreachedDies: a client that dies between the drive's part and the copy, and takes its memory with it, leaves nothing behind: no part of the
// stage, no memory; and its bytes go to nobody.
func TestUnreachedDies(t *testing.T) {
	m := sharetest.NewUnreached(t, 64*mib, 16*mib)
	data := noise(4, 4*mib)
	f := m.Write("file", data)
	const parts = 8 // of the stage, which stay: with the host runtime each is a memfd
	before := descriptors(t)
	for range 12 { // more than there are parts
		s := connect(t, f)
		g := newStage(t, s, f, 4*mib)
		held, release := m.Hold(func(q *blockdev.Request) bool { return q.Op == blockdev.OpRead })
		g.ring.Start(g.read(0, 4*mib))
		<-held
		_ = unix.Fallocate(g.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4*mib)
		g.dies(t, s, release)
	}
	nothingLeft(t, m, before+parts)
	works(t, f, data)
}
