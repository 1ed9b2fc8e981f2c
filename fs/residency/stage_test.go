package residency

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/host"
)

// scarce is a runtime with so much pinned memory, in parts of a stage, which it counts.
type scarce struct {
	gpu.Runtime
	left, made int
	imports    int
	asked      atomic.Int32
	before     func() // each allocation of pinned memory
}

var errScarce = errors.New("no more pinned memory")

func (s *scarce) Alloc(kind gpu.MemKind, size int64) (gpu.Memory, error) {
	if kind == gpu.HostPinned {
		s.asked.Add(1)
		if s.before != nil {
			s.before()
		}
		if s.left == 0 {
			return nil, errScarce
		}
		s.left--
		s.made++
	}
	return s.Runtime.Alloc(kind, size)
}

func (s *scarce) Import(e gpu.Export) (gpu.Memory, error) {
	s.imports++
	return s.Runtime.Import(e)
}

// pinnedOnly is a Mapper that reaches pinned memory and, with pages, a program's, unless it fails.
type pinnedOnly struct {
	attacher
	pages bool
	fails error
}

var errFar = errors.New("out of reach")

func (p *pinnedOnly) Attach(m gpu.Memory) (blockdev.Buffer, error) {
	if m.Kind() != gpu.HostPinned && !(p.pages && m.Reach().Owner == gpu.OwnerPages && m.Kind() == gpu.DevicePlain) {
		return nil, errFar
	}
	if p.fails != nil {
		return nil, p.fails
	}
	return p.attacher.Attach(m)
}

// cpu is a Copier.
type cpu struct {
	fails atomic.Pointer[error]
	calls atomic.Int64
	rt    *host.Runtime
}

func (c *cpu) Copy(dst, src gpu.Addr, n int64) error {
	c.calls.Add(1)
	if err := c.fails.Load(); err != nil {
		return *err
	}
	s, err := c.rt.NewStream()
	if err != nil {
		return err
	}
	return errors.Join(s.Copy(dst, src, n), s.Wait(time.Minute), s.Close())
}

// newFar is a pool of memory that the drive does not reach, with pinned memory for so many parts, and some of that memory. At the end nothing is left.
func newFar(t *testing.T, parts int) (*Pool, *Memory, *scarce, *pinnedOnly, *cpu) {
	t.Helper()
	rt, err := host.Open(host.Options{})
	require.NoError(t, err)
	s, a, c := &scarce{Runtime: rt, left: parts}, &pinnedOnly{}, &cpu{rt: rt}
	p, err := New(Config{Runtime: s, Mapper: a, Copier: c, Size: 8 * rt.Facts().Granularity})
	require.NoError(t, err)
	require.ErrorIs(t, p.Unreached(), errFar)
	require.Equal(t, errFar.Error(), p.Stats().Unreached)
	h, err := p.Alloc(100_000, nil, nil)
	require.NoError(t, err)
	require.True(t, h.Memory().Staged())
	t.Cleanup(func() {
		h.Release()
		require.NoError(t, p.Close())
		require.Zero(t, p.Stats().Used)
		require.Zero(t, a.live.Load(), "all is detached from the controller")
		require.NoError(t, rt.Close(), "the runtime finds leaks")
	})
	return p, h.Memory(), s, a, c
}

type taken struct {
	q   *Part
	err error
}

// take begins n calls of Part, and returns when they have ended or wait.
func take(m *Memory, n int) chan taken {
	c := make(chan taken, n)
	for range n {
		go func() {
			q, err := m.Part(nil, nil)
			c <- taken{q, err}
		}()
	}
	synctest.Wait()
	return c
}

// TestParts: there are so many parts, made when they are needed, each of one caller at a time; who finds none waits for one that is given back.
func TestParts(t *testing.T) {
	_, m, s, _, _ := newFar(t, 100)
	synctest.Test(t, func(t *testing.T) {
		first, err := m.Part(nil, nil)
		require.NoError(t, err)
		first.Give()
		again, err := m.Part(nil, nil)
		require.NoError(t, err)
		require.Same(t, first, again)
		require.Equal(t, 1, s.made)
		owned := map[*Part]bool{again: true}
		for range stageParts - 1 {
			q, err := m.Part(nil, nil)
			require.NoError(t, err)
			require.False(t, owned[q])
			owned[q] = true
		}
		waiting := take(m, 3)
		require.Empty(t, waiting)
		for q := range owned { // each wakes one
			q.Give()
			synctest.Wait()
			if w := len(owned); w > stageParts-3 {
				require.Len(t, waiting, 1)
				require.Equal(t, taken{q, nil}, <-waiting)
				defer q.Give()
			}
			delete(owned, q)
		}
		require.Equal(t, stageParts, s.made)
	})
}

// TestLostParts: a part whose copy has failed is nobody's any more, and with the last one who waits is told. What was refused or not begun, and moved nothing, loses none.
func TestLostParts(t *testing.T) {
	_, m, s, _, c := newFar(t, 100)
	synctest.Test(t, func(t *testing.T) {
		bad := errors.New("the copy engine does not answer")
		q, err := m.Part(nil, nil)
		require.NoError(t, err)
		require.ErrorIs(t, q.To(m, int(m.Size()), 0, 1), syscall.EINVAL)
		require.ErrorIs(t, q.From(m, -1, 0, 1), syscall.EINVAL)
		c.fails.Store(&bad)
		require.NoError(t, q.To(m, int(m.Size()), 0, 0), "nothing needs no copy")
		require.Zero(t, c.calls.Load())
		unbegun := fmt.Errorf("%w: no stream", gpu.ErrNotBegun)
		c.fails.Store(&unbegun)
		require.ErrorIs(t, q.To(m, 0, 0, 1), unbegun)
		require.ErrorIs(t, q.From(m, 0, 0, 1), unbegun)
		c.fails.Store(&bad)
		q.Give()
		again, err := m.Part(nil, nil)
		require.NoError(t, err)
		require.Same(t, q, again)
		q.Give()

		var all []*Part
		for range stageParts {
			q, err := m.Part(nil, nil)
			require.NoError(t, err)
			require.False(t, slices.Contains(all, q))
			all = append(all, q)
		}
		waiting := take(m, 2)
		require.Empty(t, waiting)
		for i, q := range all {
			require.Empty(t, waiting, "one may be given back yet")
			copied := q.To
			if i%2 == 1 {
				copied = q.From
			}
			c.fails.Store(&bad)
			require.ErrorIs(t, copied(m, 0, 0, 10), bad)
			c.fails.Store(&unbegun)
			require.ErrorIs(t, copied(m, 0, 0, 10), unbegun)
			q.Give()
			synctest.Wait()
		}
		require.Len(t, waiting, 2)
		for range 2 {
			require.ErrorContains(t, (<-waiting).err, "all of the stage is lost")
		}
		c.fails.Store(nil)
		_, err = m.Part(nil, nil)
		require.ErrorContains(t, err, "all of the stage is lost")
		require.Equal(t, stageParts, s.made)
	})
}

// TestScarceParts: where there is memory for a few parts only, the rest waits for these; without any that somebody has, that is an error, and not for good.
func TestScarceParts(t *testing.T) {
	_, m, s, a, c := newFar(t, 0)
	synctest.Test(t, func(t *testing.T) {
		_, err := m.Part(nil, nil)
		require.ErrorIs(t, err, errScarce)
		s.left, a.fails = 1, errors.New("no room in the IOMMU")
		_, err = m.Part(nil, nil)
		require.ErrorIs(t, err, a.fails)
		s.left, a.fails = 2, nil
		q, err := m.Part(nil, nil)
		require.NoError(t, err)
		lost, err := m.Part(nil, nil)
		require.NoError(t, err)
		waiting := take(m, 1)
		require.Empty(t, waiting)
		q.Give()
		require.Equal(t, taken{q, nil}, <-waiting)

		bad := errors.New("the copy engine does not answer")
		c.fails.Store(&bad)
		waiting = take(m, 2)
		for _, q := range []*Part{q, lost} { // all that there are
			require.Empty(t, waiting)
			require.ErrorIs(t, q.To(m, 0, 0, 1), bad)
			q.Give()
			synctest.Wait()
		}
		for range 2 {
			require.ErrorIs(t, (<-waiting).err, errScarce)
		}
		c.fails.Store(nil)
		s.left = 1
		q, err = m.Part(nil, nil)
		require.NoError(t, err)
		q.Give()
	})
}

// TestPartsWhileOneIsMade: who makes a part, which takes long, holds up nobody who gives one back or finds one.
func TestPartsWhileOneIsMade(t *testing.T) {
	_, m, s, _, _ := newFar(t, 2)
	first, err := m.Part(nil, nil)
	require.NoError(t, err)
	s.before = func() {
		meanwhile := make(chan error)
		go func() {
			first.Give()
			q, err := m.Part(nil, nil)
			if err == nil {
				q.Give()
			}
			meanwhile <- err
		}()
		select {
		case err := <-meanwhile:
			require.NoError(t, err)
		case <-time.After(time.Minute):
			panic("they wait for the part that is made")
		}
	}
	second, err := m.Part(nil, nil)
	require.NoError(t, err)
	require.NotSame(t, first, second)
	second.Give()
	require.Equal(t, 2, s.made)
}

// TestPartsAtOnce: of callers at once each gets a part of its own, or, if it cannot be made, what another gives back or the error; no more are made than there
// may be, one after the other.
func TestPartsAtOnce(t *testing.T) {
	_, m, s, _, _ := newFar(t, 3)
	synctest.Test(t, func(t *testing.T) {
		token := make(chan struct{})
		s.before = func() { <-token }
		makes := func() { token <- struct{}{}; synctest.Wait() }
		all := take(m, 4)
		var owned []*Part
		for i := range 3 {
			require.EqualValues(t, i+1, s.asked.Load(), "one at a time")
			require.Empty(t, all)
			makes()
			got := <-all
			require.NoError(t, got.err)
			require.False(t, slices.Contains(owned, got.q))
			owned = append(owned, got.q)
		}
		require.EqualValues(t, 4, s.asked.Load())
		makes() // fails
		late := take(m, 2)
		require.EqualValues(t, 5, s.asked.Load())
		makes() // fails
		require.EqualValues(t, 5, s.asked.Load(), "who waits does not try again and again")
		require.Empty(t, all)
		require.Empty(t, late)
		for range 3 {
			owned[0].Give()
			synctest.Wait()
			require.Equal(t, 1, len(all)+len(late))
			select {
			case got := <-all:
				require.Equal(t, taken{owned[0], nil}, got)
			case got := <-late:
				require.Equal(t, taken{owned[0], nil}, got)
			}
		}

		all = take(m, 1)
		require.EqualValues(t, 6, s.asked.Load())
		owned[0].Give() // while another is made, which fails
		synctest.Wait()
		require.Empty(t, all)
		makes()
		require.Equal(t, taken{owned[0], nil}, <-all)
		for _, q := range owned {
			q.Give()
		}
	})
}

// TestNoParts: where none can be made and nobody has one, all callers hear why.
func TestNoParts(t *testing.T) {
	_, m, s, _, _ := newFar(t, 0)
	synctest.Test(t, func(t *testing.T) {
		token := make(chan struct{})
		s.before = func() { <-token }
		all := take(m, 3)
		for range 3 {
			require.Empty(t, all)
			token <- struct{}{}
			synctest.Wait()
			require.ErrorIs(t, (<-all).err, errScarce)
		}
		require.EqualValues(t, 3, s.asked.Load())
	})
}

// TestManyParts: callers at once make no more parts than there may be.
func TestManyParts(t *testing.T) {
	_, m, s, _, _ := newFar(t, 100)
	synctest.Test(t, func(t *testing.T) {
		all := take(m, 2*stageParts)
		require.Len(t, all, stageParts)
		for range 2 * stageParts {
			got := <-all
			require.NoError(t, got.err)
			got.q.Give()
			synctest.Wait()
		}
		require.Equal(t, stageParts, s.made)
	})
}

// TestStageCopies: bytes go where they are to, and are counted when they have arrived.
func TestStageCopies(t *testing.T) {
	p, m, _, _, c := newFar(t, 1)
	q, err := m.Part(nil, nil)
	require.NoError(t, err)
	defer q.Give()
	in := q.mem.Host()
	copy(in[70:], "from the drive")
	require.NoError(t, q.To(m, 5, 70, 14))
	require.Equal(t, "\x00from the drive\x00", string(m.mem.Host()[4:20]))
	require.NoError(t, q.From(m, 10, 1000, 9))
	require.Equal(t, "\x00the drive\x00", string(in[999:1010]))
	require.EqualValues(t, 14+9, p.Stats().Staged)
	require.True(t, bytes.Equal(make([]byte, 100), in[PartSize-100:]))
	bad := errors.New("the copy engine does not answer")
	c.fails.Store(&bad)
	require.ErrorIs(t, q.To(m, 5, 70, 14), bad)
	require.EqualValues(t, 14+9, p.Stats().Staged)
}

// TestProof: a mapping that succeeds but leads elsewhere does not count; what was tried with leaves nothing behind.
func TestProof(t *testing.T) {
	rt, err := host.Open(host.Options{})
	require.NoError(t, err)
	elsewhere := errors.New("the bytes are not there")
	for _, proof := range []error{nil, elsewhere} {
		a, proved, v := &attacher{}, 0, &mover{bytes: make([]byte, 10)}
		p, err := New(Config{Runtime: rt, Mapper: a, Mover: v, Copier: &cpu{rt: rt}, Size: 8 * rt.Facts().Granularity, Prove: func(m *Memory) error {
			proved++
			require.EqualValues(t, rt.Facts().Granularity, m.Size())
			require.Equal(t, gpu.DeviceVMM, m.mem.Kind(), "another kind may be reached where this one is not")
			m.host = nil // as a GPU's
			require.NoError(t, m.Put(3, []byte("moved")))
			require.Equal(t, "moved", string(v.bytes[3:8]))
			return proof
		}})
		require.NoError(t, err)
		require.Equal(t, 1, proved)
		require.Equal(t, proof, p.Unreached())
		require.Zero(t, a.live.Load())
		h, err := p.Alloc(1, nil, nil)
		require.NoError(t, err)
		require.Equal(t, proof != nil, h.Memory().Staged())
		require.Equal(t, proof == nil, a.live.Load() == 1)
		h.Release()
		require.NoError(t, p.Close())
	}
	require.NoError(t, rt.Close(), "the runtime finds leaks")
}

// TestImport: a program's pages are the host's, whose memory the controller must reach; what a GPU exports is the GPU's, and may go through the stage.
func TestImport(t *testing.T) {
	rt, err := host.Open(host.Options{})
	require.NoError(t, err)
	g, err := rt.Alloc(gpu.DeviceVMM, rt.Facts().Granularity)
	require.NoError(t, err)
	e, err := g.Export(gpu.ExportMemFD)
	require.NoError(t, err)
	device, pages, a := &scarce{Runtime: rt}, &scarce{Runtime: rt}, &pinnedOnly{}
	p, err := New(Config{Runtime: device, Host: pages, Mapper: a, Copier: &cpu{rt: rt}, Size: 8 * rt.Facts().Granularity})
	require.NoError(t, err)
	_, err = p.Import(e, nil)
	require.ErrorIs(t, err, errFar, "the stage is none for memory that is the host's")
	a.pages = true
	m, err := p.Import(e, nil)
	require.NoError(t, err)
	require.False(t, m.Staged(), "though the pool's own memory is")
	require.NoError(t, m.Close())
	a.pages = false
	require.Equal(t, []int{0, 2}, []int{device.imports, pages.imports})

	other := e
	other.Kind = gpu.ExportPOSIX
	_, err = p.Import(other, nil)
	require.ErrorIs(t, err, syscall.EINVAL)
	require.Equal(t, []int{1, 2}, []int{device.imports, pages.imports})

	p.c.Host = nil
	m, err = p.Import(e, nil)
	require.NoError(t, err)
	require.True(t, m.Staged())
	require.Equal(t, []int{2, 2}, []int{device.imports, pages.imports})
	require.NoError(t, m.Close())
	p.c.Copier = nil
	_, err = p.Import(e, nil)
	require.ErrorIs(t, err, errFar)

	require.NoError(t, p.Close())
	require.NoError(t, unix.Close(e.FD))
	require.NoError(t, g.Close())
	require.NoError(t, rt.Close(), "the runtime finds leaks")
}
