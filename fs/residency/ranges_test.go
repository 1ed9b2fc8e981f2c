package residency

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/host"
)

// used is a runtime whose memory has other programs' bytes at first, as a GPU's has, and which exports no memory read-only.
type used struct {
	gpu.Runtime
	fails atomic.Pointer[error]
}

func (u *used) Facts() gpu.Facts {
	f := u.Runtime.Facts()
	f.Exports = []gpu.ExportKind{gpu.ExportPOSIX}
	return f
}

func (u *used) Alloc(kind gpu.MemKind, size int64) (gpu.Memory, error) {
	if err := u.fails.Load(); err != nil {
		return nil, *err
	}
	m, err := u.Runtime.Alloc(kind, size)
	if err == nil {
		copy(m.Host(), bytes.Repeat([]byte("secret"), int(size/6+1)))
	}
	return m, err
}

func newUsed(t *testing.T, granules int64) (*Pool, *used) {
	t.Helper()
	rt, err := host.Open(host.Options{})
	require.NoError(t, err)
	u := &used{Runtime: rt}
	p, err := New(Config{Runtime: u, Mapper: &attacher{}, Size: granules * rt.Facts().Granularity})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, p.Close())
		require.Zero(t, p.Stats().Used)
		require.Empty(t, p.files)
		require.NoError(t, rt.Close())
	})
	return p, u
}

// content is all of a hold's memory.
func content(t *testing.T, h *Hold) []byte {
	t.Helper()
	b := make([]byte, h.Memory().Size())
	require.NoError(t, h.Memory().Get(0, b))
	return b
}

// TestUsedMemory: of memory that was another's a program sees the file's bytes and zeroes, and nothing else: holes, the rest of a range's granule, memory of its own.
func TestUsedMemory(t *testing.T) {
	p, _ := newUsed(t, 4)
	padded := func(text string) []byte { return append([]byte(text), make([]byte, int(p.granule)-len(text))...) }
	read := func(m *Memory) error { // with a hole
		if err := m.Put(0, []byte("abc")); err != nil {
			return err
		}
		return m.Zero(3, 2)
	}
	h, err := p.Map(want(1, 5, read))
	require.NoError(t, err)
	require.Equal(t, padded("abc"), content(t, h))
	h.Release()
	h, err = p.Alloc(5, read, nil)
	require.NoError(t, err)
	require.Equal(t, padded("abc"), content(t, h))
	h.Release()
	h, err = p.Alloc(5, nil, nil)
	require.NoError(t, err)
	require.Equal(t, padded(""), content(t, h))
	h.Release()
}

// TestNoRange: ranges that cannot be are refused before anything is read.
func TestNoRange(t *testing.T) {
	p := newPool(t, 2)
	const far = math.MaxInt64/2 + 1
	for _, r := range [][2]int64{{-1, 1}, {0, 0}, {0, -1}, {0, far}, {far, 1}, {-1, -1}, {far, far}} {
		w := want(1, r[1], func(*Memory) error { t.Error("was read"); return nil })
		w.Off = r[0]
		_, err := p.Map(w)
		require.ErrorIs(t, err, syscall.EINVAL, r)
	}
	for _, n := range []int64{0, -1} {
		_, err := p.Alloc(n, nil, nil)
		require.ErrorIs(t, err, syscall.EINVAL)
	}
	for _, n := range []int64{p.Size() + 1, math.MaxInt64} {
		_, err := p.Alloc(n, nil, nil)
		require.ErrorIs(t, err, errFull)
		require.ErrorContains(t, err, "in all")
	}
	bad := errors.New("the drive has failed")
	_, err := p.Alloc(p.Size(), func(*Memory) error { return bad }, nil)
	require.ErrorIs(t, err, bad)
	h, err := p.Alloc(p.Size(), nil, nil)
	require.NoError(t, err, "all of it")
	h.Release()
	require.Zero(t, p.Stats().Used, "private memory is nobody else's")
}

// TestClosed: a pool that is closed gives nothing more; what is held then goes with its holder.
func TestClosed(t *testing.T) {
	p := newPool(t, 4)
	load := func(m *Memory) error { return m.Put(0, []byte("x")) }
	idle, err := p.Map(want(1, 10, load))
	require.NoError(t, err)
	held, err := p.Map(want(2, 10, load))
	require.NoError(t, err)
	idle.Release()
	require.NoError(t, p.Close())
	require.Equal(t, p.granule, p.Stats().Used)
	_, err = p.Map(want(2, 10, load))
	require.ErrorIs(t, err, syscall.ESHUTDOWN)
	held.Release()
	require.Zero(t, p.Stats().Used)
}

// TestAdmitted: who asks for a range that is not there is asked for its memory first, and gets nothing if that is refused.
func TestAdmitted(t *testing.T) {
	p := newPool(t, 4)
	var asked []int64
	refused := errors.New("too much")
	var answer error
	w := want(1, p.granule+1, func(*Memory) error { return nil })
	w.Admit = func(n int64) error { asked = append(asked, n); return answer }
	h, err := p.Map(w)
	require.NoError(t, err)
	answer = refused
	again, err := p.Map(w)
	require.NoError(t, err, "it is there")
	require.Equal(t, []int64{2 * p.granule}, asked)
	w.Key.Ino = 2
	_, err = p.Map(w)
	require.ErrorIs(t, err, refused)
	require.Len(t, p.Stats().Residents, 1)
	require.Equal(t, 2*p.granule, p.Stats().Used)
	h.Release()
	again.Release()
}

// TestWhoShares: a range serves what lies within it, of the same file and generation, while it is current, and no other.
func TestWhoShares(t *testing.T) {
	p := newPool(t, 16)
	loads := 0
	ask := func(w Want) (h *Hold, loaded bool) {
		t.Helper()
		was := loads
		w.Load = func(*Memory) error { loads++; return nil }
		h, err := p.Map(w)
		require.NoError(t, err)
		t.Cleanup(h.Release)
		return h, loads > was
	}
	k := Key{Ino: 1, Generation: 1}
	first, loaded := ask(Want{Key: k, Off: 1000, N: 100})
	require.True(t, loaded)
	require.EqualValues(t, 50, first.Offset(1050))
	require.NotZero(t, first.Generation(), "0 is private memory's")
	for _, c := range []struct {
		w      Want
		shares bool
	}{
		{Want{Key: k, Off: 1000, N: 100}, true},
		{Want{Key: k, Off: 1001, N: 99}, true},
		{Want{Key: k, Off: 1000, N: 1}, true},
		{Want{Key: k, Off: 999, N: 100}, false},
		{Want{Key: k, Off: 1001, N: 100}, false},
		{Want{Key: Key{Ino: 1, Generation: 2}, Off: 1000, N: 100}, false},
		{Want{Key: Key{Ino: 2, Generation: 1}, Off: 1000, N: 100}, false},
		{Want{Key: Key{Ino: 1, Generation: 1, Owner: 5}, Off: 1000, N: 100}, false},
	} {
		h, loaded := ask(c.w)
		require.Equal(t, c.shares, !loaded, c.w)
		require.Equal(t, c.shares, h.Memory() == first.Memory(), c.w)
		require.True(t, h.Shared())
	}
	// A range to the end serves a part, a part does not serve who wants to hear of appends.
	end := Want{Key: Key{Ino: 3, Generation: 1}, Off: 0, N: 100, ToEnd: true}
	part := end
	part.ToEnd = false
	_, loaded = ask(part)
	require.True(t, loaded)
	_, loaded = ask(end)
	require.True(t, loaded)
	_, loaded = ask(end)
	require.False(t, loaded)
	p.Changed(3, 100, 101) // what is behind the end of the part
	_, loaded = ask(part)
	require.False(t, loaded)
	h, loaded := ask(end)
	require.True(t, loaded)
	require.True(t, h.current())
	require.Greater(t, h.Generation(), first.Generation())
	p.Changed(1, 1000, 1001)
	require.False(t, first.current())
	_, loaded = ask(Want{Key: k, Off: 1000, N: 100})
	require.True(t, loaded, "a stale range is nobody's any more")
	require.EqualValues(t, 5, p.Stats().Shared, "each asked once")
	private, err := p.Alloc(10, nil, nil)
	require.NoError(t, err)
	require.False(t, private.Shared())
	require.EqualValues(t, 7, private.Offset(7))
	private.Release()
}

// bell counts its signals, which come without the pool's lock.
type bell struct {
	p    *Pool
	n    int
	held bool
}

func (b *bell) Signal() {
	b.n++
	if !b.p.mu.TryLock() {
		b.held = true
		return
	}
	b.p.mu.Unlock()
}

// TestWhatAChangeTouches: holders of bytes that have changed hear of it, once by a signal and of each range by its generation; others do not. Ranges that nobody holds go.
func TestWhatAChangeTouches(t *testing.T) {
	for _, c := range []struct {
		off, end   int64
		part, rest bool // touches [100, 200); and [100, 200) as the end of the file
	}{
		{0, 100, false, false}, {0, 101, true, true}, {199, 200, true, true}, {200, 300, false, true}, {150, 160, true, true}, {0, math.MaxInt64, true, true},
		{150, 150, false, false}, {160, 150, false, false},
	} {
		p := newPool(t, 8)
		wakes := bell{p: p}
		told := map[string][]uint64{}
		get := func(name string, ino uint32, toEnd bool) *Hold {
			h, err := p.Map(Want{Key: Key{Ino: ino, Generation: 1}, Off: 100, N: 100, ToEnd: toEnd, Load: func(*Memory) error { return nil }, Waker: &wakes,
				Notify: func(g uint64) { told[name] = append(told[name], g) }})
			require.NoError(t, err)
			return h
		}
		part, rest, other := get("part", 1, false), get("rest", 1, true), get("other", 2, false)
		too := get("too", 1, true) // the same range
		get("idle", 4, false).Release()
		before := p.Stats()
		require.Len(t, before.Residents, 4)
		p.Changed(1, c.off, c.end)
		require.Equal(t, c.part, !part.current(), c)
		require.Equal(t, c.rest, !rest.current(), c)
		require.Equal(t, c.rest, !too.current(), c)
		require.True(t, other.current())
		want := map[string][]uint64{}
		if c.part {
			want["part"] = []uint64{part.latest()}
		}
		if c.rest {
			want["rest"], want["too"] = []uint64{rest.latest()}, []uint64{rest.latest()}
			require.Greater(t, rest.latest(), other.Generation())
			require.Equal(t, 1, wakes.n)
			require.False(t, wakes.held)
		}
		require.Equal(t, want, told, c)
		require.Equal(t, before.Used, p.Stats().Used, "what is held stays")
		p.Changed(4, 0, 1)
		p.Changed(4, 150, 151)
		require.Equal(t, before.Used-p.granule, p.Stats().Used, "what nobody holds goes")
		require.Len(t, p.Stats().Residents, 3)
		for _, h := range []*Hold{part, rest, too, other} {
			h.Release()
		}
		kept := 1 // the other's
		if !c.part {
			kept++
		}
		if !c.rest {
			kept++
		}
		require.Len(t, p.Stats().Residents, kept, "stale ranges go with their last holder: %v", c)
		require.EqualValues(t, kept, p.Stats().Used/p.granule)
	}
}

// TestWhoGoes: room is made by the ranges that were held least recently, no more of them than it takes; none that is held or pinned.
func TestWhoGoes(t *testing.T) {
	p, rt := newUsed(t, 4)
	loads := 0
	get := func(ino uint32, granules int64) (*Hold, error) {
		return p.Map(want(ino, granules*p.granule, func(*Memory) error { loads++; return nil }))
	}
	use := func(ino uint32, granules int64) {
		t.Helper()
		h, err := get(ino, granules)
		require.NoError(t, err)
		h.Release()
	}
	there := func() (all []uint32) {
		for _, r := range p.Stats().Residents {
			all = append(all, r.Ino)
		}
		slices.Sort(all)
		return all
	}
	for ino := range uint32(4) {
		use(ino, 1)
	}
	use(0, 1)
	require.Equal(t, 4, loads)
	use(4, 1)
	require.Equal(t, []uint32{0, 2, 3, 4}, there())
	p.Pin(Key{Ino: 2, Generation: 1}, true)
	held, err := get(3, 1)
	require.NoError(t, err)
	use(5, 2)
	require.Equal(t, []uint32{2, 3, 5}, there())
	require.Equal(t, int64(3), p.Stats().Evicted)
	for _, r := range p.Stats().Residents {
		require.Equal(t, r.Ino == 2, r.Pinned)
		require.Equal(t, r.Ino == 3, r.Holders == 1)
	}
	_, err = get(6, 3)
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.ErrorContains(t, err, "are held or pinned")
	require.Equal(t, []uint32{2, 3, 5}, there(), "who does not fit takes nothing")
	p.Pin(Key{Ino: 2, Generation: 1}, false)
	use(6, 3)
	require.Equal(t, []uint32{3, 6}, there())
	held.Release()

	// What the runtime refuses takes nothing.
	bad := errors.New("the GPU has no memory")
	rt.fails.Store(&bad)
	_, err = get(7, 1)
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.ErrorIs(t, err, bad)
	rt.fails.Store(nil)
	require.Equal(t, []uint32{3}, there(), "it made room")
	require.Equal(t, p.granule, p.Stats().Used)
	use(8, 1)
	require.Equal(t, []uint32{3, 8}, there())
}

// TestFailedForOthers: who waits for another's read that fails reads by himself, up to maxLoads times; nobody gets memory of a read that failed.
func TestFailedForOthers(t *testing.T) {
	p := newPool(t, 4)
	bad := errors.New("the drive has failed")
	begun, goOn := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := p.Map(want(1, 100, func(m *Memory) error { m.Read(7); close(begun); <-goOn; return bad }))
		if !errors.Is(err, bad) {
			t.Error(err)
		}
	})
	<-begun
	s := p.Stats().Residents
	require.Len(t, s, 1)
	require.EqualValues(t, 7, s[0].Read, "how far it is")
	waits := make(chan struct{})
	wg.Go(func() {
		w := want(1, 100, func(m *Memory) error { return m.Put(0, []byte("good")) })
		close(waits)
		h, err := p.Map(w)
		if err != nil {
			t.Error(err)
			return
		}
		var b [4]byte
		if err := h.Memory().Get(0, b[:]); err != nil || string(b[:]) != "good" {
			t.Error(string(b[:]), err)
		}
		h.Release()
	})
	<-waits
	for end := time.Now().Add(time.Minute); p.Stats().Shared == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			close(goOn)
			wg.Wait()
			require.Fail(t, "it has not joined the read")
		}
	}
	close(goOn)
	wg.Wait()
	require.Equal(t, int64(1), p.Stats().Loads)
	require.Equal(t, int64(100), p.Stats().Loaded)
	require.Equal(t, p.granule, p.Stats().Used)
}

// kept is memory that cannot be freed.
type kept struct {
	gpu.Memory
	err error
}

func (k kept) Close() error { return errors.Join(k.err, k.Memory.Close()) }

// TestNoRoomMade: where the range that has to go cannot be freed, or new memory cannot be reached, there is no memory for another, and nothing is left of it.
func TestNoRoomMade(t *testing.T) {
	rt, err := host.Open(host.Options{})
	require.NoError(t, err)
	a := &pinnedOnly{}
	p, err := New(Config{Runtime: rt, Mapper: a, Size: rt.Facts().Granularity})
	require.NoError(t, err)
	nothing := func(*Memory) error { return nil }
	_, err = p.Map(want(1, 1, nothing))
	require.ErrorIs(t, err, errFar)
	require.Zero(t, p.Stats().Used)

	p.c.Mapper = &a.attacher
	h, err := p.Map(want(1, 1, nothing))
	require.NoError(t, err)
	bad := errors.New("the GPU does not answer")
	h.r.mem.mem = kept{h.r.mem.mem, bad}
	h.Release()
	_, err = p.Map(want(2, 1, nothing))
	require.ErrorIs(t, err, bad)
	require.Zero(t, p.Stats().Used)
	h, err = p.Map(want(2, 1, nothing))
	require.NoError(t, err)
	h.Release()
	require.NoError(t, p.Close())
	require.Zero(t, a.live.Load())
	require.NoError(t, rt.Close(), "the runtime finds leaks")
}

// TestExport: who shares memory can only read it, and private memory is its program's to write. What nobody wrote to takes no page.
func TestExport(t *testing.T) {
	p := newPool(t, 4)
	shared, err := p.Map(want(1, 5, func(m *Memory) error { return m.Put(0, []byte("hello")) }))
	require.NoError(t, err)
	s := p.Stats().Residents
	require.Len(t, s, 1)
	require.EqualValues(t, 5, s[0].Read, "though the load did not say so")
	require.Equal(t, p.granule, s[0].Memory)
	private, err := p.Alloc(p.granule, nil, nil)
	require.NoError(t, err)
	for _, h := range []*Hold{shared, private} {
		e, err := h.Export(nil)
		require.NoError(t, err)
		var st unix.Stat_t
		require.NoError(t, unix.Fstat(e.FD, &st))
		require.Equal(t, h == shared, st.Blocks > 0)
		b, err := unix.Mmap(e.FD, e.Offset, int(e.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if h == shared {
			require.Error(t, err)
		} else {
			require.NoError(t, err)
			require.NoError(t, unix.Munmap(b))
		}
		require.NoError(t, unix.Close(e.FD))
		h.Release()
	}
}

// none is a runtime that exports no memory, plain is one without VMM, many exports in any way.
type none struct{ gpu.Runtime }

func (n none) Facts() gpu.Facts {
	f := n.Runtime.Facts()
	f.Exports = nil
	return f
}

type plain struct{ gpu.Runtime }

func (p plain) Facts() gpu.Facts {
	f := p.Runtime.Facts()
	f.Granularity = 0
	return f
}

type many struct{ gpu.Runtime }

func (m many) Facts() gpu.Facts {
	f := m.Runtime.Facts()
	f.Exports = []gpu.ExportKind{gpu.ExportIPC, gpu.ExportDMABUF, gpu.ExportPOSIX, gpu.ExportMemFD}
	return f
}

// TestPoolSize: a pool has whole granules, of plain memory too; less than one is none, and so is a runtime whose memory no program could get.
func TestPoolSize(t *testing.T) {
	rt, err := host.Open(host.Options{})
	require.NoError(t, err)
	granule := rt.Facts().Granularity
	for _, c := range []struct {
		rt         gpu.Runtime
		size, want int64
		kind       gpu.MemKind
	}{
		{rt, 3*granule + 1, 3 * granule, gpu.DeviceVMM}, {rt, granule, granule, gpu.DeviceVMM}, {rt, granule - 1, 0, 0}, {rt, 0, 0, 0}, {rt, -1, 0, 0},
		{plain{rt}, 2*plainGranule + 5, 2 * plainGranule, gpu.DevicePlain}, {plain{rt}, plainGranule - 1, 0, 0},
	} {
		p, err := New(Config{Runtime: c.rt, Mapper: &attacher{}, Size: c.size})
		if c.want == 0 {
			require.ErrorContains(t, err, "at least a granule", c)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.want, p.Size())
		require.Equal(t, c.kind, p.kind)
		require.EqualValues(t, p.Granule(), p.Round(1))
		require.NoError(t, p.Close())
	}
	_, err = New(Config{Runtime: none{rt}, Mapper: &attacher{}, Size: granule})
	require.ErrorContains(t, err, "exports no memory")
	p, err := New(Config{Runtime: many{rt}, Mapper: &attacher{}, Size: granule})
	require.NoError(t, err)
	require.Equal(t, []gpu.ExportKind{gpu.ExportMemFD, gpu.ExportPOSIX, gpu.ExportDMABUF, gpu.ExportIPC}, p.exports)
	require.NoError(t, p.Close())
	require.NoError(t, rt.Close())
}

// TestAllFail: who has waited for maxLoads reads of others, all of which failed, waits for no more.
func TestAllFail(t *testing.T) {
	p := newPool(t, maxLoads+1)
	bad := errors.New("the drive has failed")
	synctest.Test(t, func(t *testing.T) {
		var goOn [maxLoads + 1]chan struct{}
		var wg sync.WaitGroup
		for i := range goOn {
			goOn[i] = make(chan struct{})
			wg.Go(func() {
				_, err := p.Map(want(1, int64(100+i), func(*Memory) error { <-goOn[i]; return bad }))
				if !errors.Is(err, bad) {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		waits := make(chan error, 1)
		go func() {
			_, err := p.Map(want(1, 50, func(*Memory) error { t.Error("was read"); return nil }))
			waits <- err
		}()
		for range maxLoads {
			synctest.Wait()
			require.Empty(t, waits)
			for _, r := range p.Stats().Residents {
				if r.Holders == 2 {
					close(goOn[r.Bytes-100])
				}
			}
		}
		require.ErrorIs(t, <-waits, bad)
		for _, r := range p.Stats().Residents {
			close(goOn[r.Bytes-100])
		}
		wg.Wait()
	})
}
