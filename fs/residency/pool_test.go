package residency

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/host"
)

// attacher is a Mapper without a controller. The tests load by Put.
type attacher struct{ live atomic.Int64 }

type lent struct {
	a *attacher
	m gpu.Memory
}

func (a *attacher) Attach(m gpu.Memory) (blockdev.Buffer, error) {
	a.live.Add(1)
	return &lent{a, m}, nil
}
func (l *lent) Bytes() []byte                   { return l.m.Host() }
func (l *lent) Len() int                        { return int(l.m.Size()) }
func (l *lent) Slice(off, n int) blockdev.Slice { return blockdev.Slice{Buf: l, Off: off, N: n} }
func (l *lent) Release()                        { l.a.live.Add(-1) }

func newPool(t *testing.T, granules int64) *Pool {
	t.Helper()
	rt, err := host.Open(host.Options{})
	require.NoError(t, err)
	a := &attacher{}
	p, err := New(Config{Runtime: rt, Mapper: a, Size: granules * rt.Facts().Granularity})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, p.Close())
		require.Zero(t, p.Stats().Used)
		require.Zero(t, a.live.Load())
		require.NoError(t, rt.Close())
	})
	return p
}

func want(ino uint32, n int64, load func(*Memory) error) Want {
	return Want{Key: Key{Ino: ino, Generation: 1}, N: n, Load: load}
}

func TestFailedLoad(t *testing.T) {
	p := newPool(t, 4)
	bad := errors.New("the drive has failed")
	_, err := p.Map(want(1, 100, func(*Memory) error { return bad }))
	require.ErrorIs(t, err, bad)
	require.Zero(t, p.Stats().Used)
	h, err := p.Map(want(1, 100, func(m *Memory) error { return m.Put(0, []byte("works now")) }))
	require.NoError(t, err, "a failure is not remembered")
	h.Release()
	require.Panics(t, h.Release)
}

// TestChangeDuringLoad: a range that changes while it is read is read again; one that changes every time is returned as it is.
func TestChangeDuringLoad(t *testing.T) {
	p := newPool(t, 4)
	loads := 0
	h, err := p.Map(want(1, 100, func(*Memory) error {
		if loads++; loads < 3 {
			p.Changed(1, 50, 51)
		}
		return nil
	}))
	require.NoError(t, err)
	require.Equal(t, 3, loads)
	require.True(t, h.current())
	h.Release()

	loads = 0
	told := uint64(0)
	w := want(2, 100, func(*Memory) error { loads++; p.Changed(2, 0, 1); return nil })
	w.Notify = func(g uint64) { told = g }
	h, err = p.Map(w)
	require.NoError(t, err)
	require.Equal(t, maxLoads, loads)
	require.False(t, h.current())
	require.Equal(t, h.latest(), told)
	h.Release()
	require.Len(t, p.Stats().Residents, 1, "a stale range without holds is freed")
}

// TestOwners: without read-only exports memory is shared by programs of one user only.
func TestOwners(t *testing.T) {
	p := newPool(t, 4)
	require.Equal(t, p.Key(5, 6, 7), p.Key(5, 6, 8), "memfds are sealed")
	p.sealed = false
	require.NotEqual(t, p.Key(5, 6, 7), p.Key(5, 6, 8))
}

// TestZeroes: a program never sees old bytes of memory.
func TestZeroes(t *testing.T) {
	p := newPool(t, 1)
	dirty, err := p.Alloc(p.granule, func(m *Memory) error {
		return m.Put(0, make([]byte, 10))
	}, nil)
	require.NoError(t, err)
	require.NoError(t, dirty.Memory().Put(0, []byte("secret")))
	dirty.Release()
	h, err := p.Alloc(100, nil, nil)
	require.NoError(t, err)
	got := make([]byte, p.granule)
	require.NoError(t, h.Memory().Get(0, got))
	require.Equal(t, make([]byte, p.granule), got)
	require.Error(t, h.Memory().Get(1, got))
	require.Error(t, h.Memory().Put(-1, got[:1]))
	require.NoError(t, h.Memory().Put(5, []byte{1, 2, 3}))
	require.NoError(t, h.Memory().Zero(6, 1), "memory that was written to is zeroed in earnest")
	require.NoError(t, h.Memory().Get(5, got[:3]))
	require.Equal(t, []byte{1, 0, 3}, got[:3])
	h.Release()
}

// TestMany: goroutines map, hold, change, pin and release ranges; the sums are right all the time.
func TestMany(t *testing.T) {
	p := newPool(t, 8)
	var wg sync.WaitGroup
	for seed := range uint64(6) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 3))
			var held []*Hold
			for range 300 {
				ino := uint32(1 + rng.IntN(6))
				switch rng.IntN(6) {
				case 0:
					p.Changed(ino, 0, 1<<40)
				case 1:
					p.Pin(Key{Ino: ino, Generation: 1}, rng.IntN(3) == 0)
				default:
					h, err := p.Map(want(ino, 1+rng.Int64N(2*p.granule), func(m *Memory) error { return m.Put(0, []byte{byte(ino)}) }))
					if err != nil {
						if !errors.Is(err, errFull) {
							t.Error(err)
						}
					} else {
						held = append(held, h)
					}
				}
				if s := p.Stats(); s.Used > s.Size || s.Used < 0 {
					t.Errorf("%d bytes of %d in use", s.Used, s.Size)
				}
				for len(held) > rng.IntN(3) {
					var b [1]byte
					if err := held[0].Memory().Get(0, b[:]); err != nil || uint32(b[0]) != held[0].r.key.Ino {
						t.Errorf("byte %d, %v", b[0], err)
					}
					held[0].Release()
					held = held[1:]
				}
			}
			for _, h := range held {
				h.Release()
			}
		})
	}
	wg.Wait()
}
