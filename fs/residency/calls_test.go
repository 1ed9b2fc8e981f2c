package residency

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/host"
)

// stuck is a runtime whose calls of one kind return only once hung is closed.
type stuck struct {
	gpu.Runtime
	call string // which hangs; "" for none
	hung chan struct{}
	n    atomic.Int64 // calls that hang
}

func (s *stuck) wait(call string) {
	if s.call == call {
		s.n.Add(1)
		<-s.hung
		s.n.Add(-1)
	}
}

func (s *stuck) Alloc(kind gpu.MemKind, size int64) (gpu.Memory, error) {
	s.wait("alloc")
	m, err := s.Runtime.Alloc(kind, size)
	return stuckMemory{m, s}, err
}

func (s *stuck) Import(e gpu.Export) (gpu.Memory, error) {
	s.wait("import")
	m, err := s.Runtime.Import(e)
	return stuckMemory{m, s}, err
}

type stuckMemory struct {
	gpu.Memory
	s *stuck
}

func (m stuckMemory) Export(k gpu.ExportKind) (gpu.Export, error) {
	m.s.wait("export")
	return m.Memory.Export(k)
}

func (m stuckMemory) Close() error {
	m.s.wait("free")
	return m.Memory.Close()
}

// TestHungCalls: who waits for a call of the runtime's that does not return is given up when nobody wants what it would give, and 2 s after the runtime has failed. What it gives later is
// freed. Nobody else waits: neither who changes a file, nor who asks what the pool has, nor who gets what is there.
func TestHungCalls(t *testing.T) {
	nothing := func(*Memory) error { return nil }
	for name, c := range map[string]struct {
		call string
		do   func(p *Pool, h *Hold, gone <-chan struct{}) error
	}{
		"a map": {"alloc", func(p *Pool, _ *Hold, gone <-chan struct{}) error {
			w := want(2, 100, nothing)
			w.Gone = gone
			_, err := p.Map(w)
			return err
		}},
		"private memory": {"alloc", func(p *Pool, _ *Hold, gone <-chan struct{}) error {
			_, err := p.Alloc(100, nil, gone)
			return err
		}},
		"an export": {"export", func(_ *Pool, h *Hold, gone <-chan struct{}) error {
			_, err := h.Export(gone)
			return err
		}},
		"an import": {"import", func(p *Pool, h *Hold, gone <-chan struct{}) error {
			e, err := h.r.mem.mem.(stuckMemory).Memory.Export(gpu.ExportMemFD)
			if err == nil {
				defer unix.Close(e.FD)
				_, err = p.Import(e, gone)
			}
			return err
		}},
		"memory that others' ranges have": {"free", func(p *Pool, _ *Hold, gone <-chan struct{}) error {
			_, err := p.Alloc(p.Size()-p.granule, nil, gone)
			return err
		}},
	} {
		for _, fails := range []bool{false, true} {
			if fails && c.call == "free" {
				continue // what is to be freed is left then, and the call goes on
			}
			t.Run(name, func(t *testing.T) {
				rt, err := host.Open(host.Options{})
				require.NoError(t, err)
				a := &attacher{}
				synctest.Test(t, func(t *testing.T) {
					s := &stuck{Runtime: rt, hung: make(chan struct{})}
					var failed atomic.Bool
					p, err := New(Config{Runtime: s, Mapper: a, Size: 8 * rt.Facts().Granularity, Failed: failed.Load})
					require.NoError(t, err)
					there, err := p.Map(want(1, 100, nothing)) // it stays when it is released
					require.NoError(t, err)
					there.Release()
					held, err := p.Alloc(100, nil, nil)
					require.NoError(t, err)
					used := p.Stats().Used
					s.call = c.call
					gone, ended := make(chan struct{}), make(chan error, 1)
					go func() { ended <- c.do(p, held, gone) }()
					time.Sleep(time.Hour)
					require.EqualValues(t, 1, s.n.Load())
					require.Empty(t, ended)
					if c.call != "free" {
						again, err := p.Map(want(1, 100, nothing))
						require.NoError(t, err)
						again.Release()
					}
					require.NotZero(t, p.Stats().Used)
					if fails {
						failed.Store(true)
						require.ErrorIs(t, <-ended, errHangs)
						failed.Store(false) // so that this test can look at what is freed
					} else {
						close(gone)
						require.ErrorIs(t, <-ended, ErrGivenUp)
					}
					close(s.hung)
					synctest.Wait()
					if c.call == "free" {
						used -= p.granule // the range has made room
					}
					require.Equal(t, used, p.Stats().Used, "what came too late is free")
					held.Release()
					require.NoError(t, p.Close())
					require.Zero(t, p.Stats().Used)
				})
				require.Zero(t, a.live.Load())
				require.NoError(t, rt.Close(), "the runtime finds leaks")
			})
		}
	}
}

// TestHungFree: who changes a file does not wait for memory of the old bytes to be freed; the pool's end does.
func TestHungFree(t *testing.T) {
	rt, err := host.Open(host.Options{})
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		s := &stuck{Runtime: rt, hung: make(chan struct{}), call: "free"}
		p, err := New(Config{Runtime: s, Mapper: &attacher{}, Size: 8 * rt.Facts().Granularity})
		require.NoError(t, err)
		for ino := range uint32(2) {
			h, err := p.Map(want(1+ino, 100, func(*Memory) error { return nil }))
			require.NoError(t, err)
			h.Release()
		}
		p.Changed(1, 0, 100) // the test deadlocks if it waits
		p.Changed(2, 0, 100)
		synctest.Wait()
		require.EqualValues(t, 2, s.n.Load())
		require.Zero(t, p.Stats().Used)
		closed := make(chan error, 1)
		go func() { closed <- p.Close() }()
		synctest.Wait()
		require.Empty(t, closed)
		close(s.hung)
		require.NoError(t, <-closed)
	})
	require.NoError(t, rt.Close(), "the runtime finds leaks")
}
