package copyengine

import (
	"bytes"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/gputest/detached"
	"github.com/lanefs/lanefs/gpu/thread"
)

// hanging is a detached runtime of which calls of some kinds do not return until they are let go of.
type hanging struct {
	*detached.Runtime
	detached.Calls
	pci string

	mu                sync.Mutex
	endless, unmarked bool // protected by mu: copies do not end; there are no marks
	begun             atomic.Int64
}

// ends says whether copies end.
func (h *hanging) ends() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.endless
}

func (h *hanging) Facts() gpu.Facts {
	f := h.Runtime.Facts()
	f.PCI = h.pci
	return f
}

func newHanging(t *testing.T) *hanging {
	t.Helper()
	limit := callLimit
	callLimit = time.Second // a thread of a call that returns may stand still for a while, on a busy machine
	d, err := detached.New(false)
	require.NoError(t, err)
	h := &hanging{Runtime: d}
	t.Cleanup(func() {
		h.LetGo()
		callLimit = limit
	})
	return h
}

func (h *hanging) Alloc(kind gpu.MemKind, size int64) (gpu.Memory, error) {
	h.Call("alloc")
	return h.Runtime.Alloc(kind, size)
}

func (h *hanging) NewStream() (gpu.Stream, error) {
	h.Call("stream")
	s, err := h.Runtime.NewStream()
	return hangingStream{s, s.(gpu.Marker), h}, err
}

type hangingStream struct {
	gpu.Stream
	m gpu.Marker
	h *hanging
}

func (s hangingStream) Copy(dst, src gpu.Addr, n int64) error {
	s.h.Call("copy")
	if !s.h.ends() {
		s.h.begun.Add(1)
		return nil
	}
	return s.Stream.Copy(dst, src, n)
}

func (s hangingStream) Launch(f gpu.Function, grid, block gpu.Dim3, args ...uint64) error {
	s.h.Call("launch")
	return s.Stream.Launch(f, grid, block, args...)
}

func (s hangingStream) Mark(dst gpu.Addr, v uint32) error {
	s.h.Call("mark")
	s.h.mu.Lock()
	unmarked := s.h.unmarked
	s.h.mu.Unlock()
	if unmarked || s.h.Sticks("query") { // the driver is asked
		return errors.ErrUnsupported
	}
	if !s.h.ends() {
		return nil
	}
	return s.m.Mark(dst, v)
}

func (s hangingStream) Done() (bool, error) {
	s.h.Call("query")
	if !s.h.ends() {
		return false, nil
	}
	return s.Stream.Done()
}

// TestCallHangs: a call of the driver that does not return, whichever, is an error for who copies, and for all others, whoever they are. When it returns later it changes nothing that a
// copy's user has, and what the engine has is nobody's any more.
func TestCallHangs(t *testing.T) {
	const size = 4 << 20
	for _, kind := range []string{"copy", "launch", "mark", "query"} {
		for _, locked := range []bool{false, true} {
			t.Run(kind+map[bool]string{true: ", of a thread's goroutine"}[locked], func(t *testing.T) {
				rt := newHanging(t)
				e, err := New(rt)
				require.NoError(t, err)
				told := make(chan error, 2)
				e.OnStuck(func(why error) { told <- why })
				m, err := rt.Alloc(gpu.DevicePlain, size)
				require.NoError(t, err)
				stage, err := e.Stage(size)
				require.NoError(t, err)
				own := bytes.Repeat([]byte{1}, 4096)
				require.NoError(t, e.Write(m, 0, bytes.Repeat([]byte{2}, 4096)))
				var mu sync.Mutex
				var bufs [][]byte // of reads that failed
				others := bytes.Repeat([]byte{3}, 4096)
				uses := map[string]func() error{
					"read": func() error {
						b := make([]byte, 4096)
						err := e.Read(b, m, 0)
						if err != nil { // it is its user's again
							copy(b, others)
							mu.Lock()
							defer mu.Unlock()
							bufs = append(bufs, b)
						}
						return err
					},
					"write": func() error { return e.Write(m, 0, stage[:4096]) },
					"all":   func() error { return e.WriteAll(m, []int64{0, 8192, 16384}, [][]byte{own, own, own}) },
					"pipe": func() error {
						p, err := e.Pipe()
						if err != nil {
							return err
						}
						return errors.Join(p.Write(m, 0, stage[:gatherLarge]), p.Read(stage[1<<20:][:gatherLarge], m, 0), p.Wait(), p.Close())
					},
					"small pieces": func() error {
						p, err := e.Pipe()
						if err != nil {
							return err
						}
						var errs []error
						for i := range 4 {
							errs = append(errs, p.Write(m, int64(i)*8192, stage[i*8192:][:4096]))
						}
						return errors.Join(append(errs, p.Close())...)
					},
				}
				var all sync.WaitGroup
				goes := func(f func()) {
					all.Go(func() {
						if locked {
							defer thread.Lock()()
						}
						f()
					})
				}
				for name, use := range uses { // as long as nothing hangs
					goes(func() {
						if err := use(); err != nil {
							t.Error(name, err)
						}
					})
				}
				all.Wait()
				rt.Stick(kind)
				for range 2 * streams / len(uses) {
					for name, use := range uses {
						goes(func() {
							for err := use(); !errors.Is(err, ErrStuck); err = use() {
								if err != nil {
									t.Error(name, err)
									return
								}
							}
						})
					}
				}
				all.Wait() // each has its error
				require.Positive(t, rt.Stuck(), "it hangs yet")
				require.ErrorIs(t, <-told, ErrStuck)
				require.ErrorIs(t, e.Stuck(), ErrStuck)
				require.Empty(t, e.turns)
				_, err = e.Stage(4096)
				require.ErrorIs(t, err, ErrStuck)
				require.Greater(t, e.Left(), int64(size+streams*bounceSize))
				require.ErrorIs(t, e.Close(), ErrStuck)

				hung := int(rt.Stuck())
				rt.LetGo()
				for end := time.Now().Add(time.Minute); bytes.Count(stacks(), []byte("copyengine.(*call).end(")) < hung; time.Sleep(time.Millisecond) {
					require.True(t, time.Now().Before(end), "hands go on after a call that was given up")
				}
				require.NotEmpty(t, bufs)
				for _, b := range bufs {
					require.True(t, bytes.Equal(others, b), "a call that was given up has changed what is somebody else's")
				}
				for name, use := range uses {
					require.ErrorIs(t, use(), ErrStuck, name)
				}
				require.Empty(t, told, "once")
			})
		}
	}
}

// TestPagesOfHungCopy: pinned pages stay where they are when a call that may read them hangs, though their owner has let go of them, and whichever GPU's it is.
func TestPagesOfHungCopy(t *testing.T) {
	for _, second := range []bool{false, true} {
		rt := newHanging(t)
		first, err := New(rt)
		require.NoError(t, err)
		other, err := New(rt)
		require.NoError(t, err)
		other.rt = &hanging{Runtime: rt.Runtime, pci: "0000:02:00.0"}
		s := NewSeveral([]*Engine{first, other})
		page := make([]byte, 64<<10)
		require.NoError(t, s.Pin(page, nil))
		stage, err := s.Stage(4096)
		require.NoError(t, err)
		m, err := rt.Alloc(gpu.DevicePlain, 4096)
		require.NoError(t, err)
		rt.Stick("copy")
		hung := first
		if second {
			hung = other
		}
		require.ErrorIs(t, hung.Write(m, 0, page[:4096]), ErrStuck)
		s.Leave(stage)
		s.Unpin(page, func() { t.Error("they are unpinned") })
		first.unpins.Wait()
		require.GreaterOrEqual(t, first.Left(), int64(len(page)+len(stage)))
		require.ErrorIs(t, s.Stuck(), ErrStuck)
		rt.LetGo()
	}
}

// TestOthersOfHungCopy: who waits for a copy that the device does not end hears of it when another copy's call does not return.
func TestOthersOfHungCopy(t *testing.T) {
	for _, marks := range []string{"mark", ""} { // where there are none the driver is asked
		rt := newHanging(t)
		e, err := New(rt)
		require.NoError(t, err)
		m, err := rt.Alloc(gpu.DevicePlain, 4096)
		require.NoError(t, err)
		rt.mu.Lock()
		rt.endless, rt.unmarked = true, marks == ""
		rt.mu.Unlock()
		waits := make(chan error, 1)
		go func() { waits <- e.Write(m, 0, make([]byte, 4096)) }()
		for rt.begun.Load() == 0 {
			time.Sleep(time.Millisecond)
		}
		rt.Stick("copy")
		require.ErrorIs(t, e.Write(m, 0, make([]byte, 4096)), ErrStuck)
		err = <-waits
		require.ErrorIs(t, err, ErrStuck)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
		rt.LetGo()
	}
}

// TestStageCallHangs: a stage that the driver does not give is an error.
func TestStageCallHangs(t *testing.T) {
	rt := newHanging(t)
	e, err := New(rt)
	require.NoError(t, err)
	rt.Stick("alloc")
	_, err = e.Stage(4096)
	require.ErrorIs(t, err, ErrStuck)
	require.ErrorIs(t, e.Close(), ErrStuck)
}

// TestPoolHangs: likewise of a pool's copies, and of those that wait for a stream.
func TestPoolHangs(t *testing.T) {
	for _, kind := range []string{"copy", "query", "stream"} {
		t.Run(kind, func(t *testing.T) {
			rt := newHanging(t)
			m, err := rt.Alloc(gpu.HostMapped, 8192)
			require.NoError(t, err)
			told := make(chan error, 1)
			var p Pool
			p.OnStuck(func(why error) { told <- why })
			require.NoError(t, p.Copy(rt, m.Addr()+4096, m.Addr(), 4096))
			rt.Stick(kind)
			var all sync.WaitGroup
			for range 3 * poolStreams {
				all.Go(func() {
					for err := p.Copy(rt, m.Addr()+4096, m.Addr(), 4096); !errors.Is(err, ErrStuck); err = p.Copy(rt, m.Addr()+4096, m.Addr(), 4096) {
						if err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
			require.Positive(t, rt.Stuck())
			require.ErrorIs(t, <-told, ErrStuck)
			require.ErrorIs(t, p.Stuck(), ErrStuck)
			rt.LetGo()
			require.ErrorIs(t, p.Copy(rt, m.Addr()+4096, m.Addr(), 4096), ErrStuck)
			p.Forget()
			require.NoError(t, p.Copy(rt, m.Addr()+4096, m.Addr(), 4096), "another runtime's")
			require.NoError(t, p.Close())
		})
	}
}

// TestSlowCall: a call that takes long, but not too long, is waited for, again and again.
func TestSlowCall(t *testing.T) {
	rt := newHanging(t)
	callLimit = time.Minute
	e, err := New(rt)
	require.NoError(t, err)
	m, err := rt.Alloc(gpu.DevicePlain, 4096)
	require.NoError(t, err)
	for range 3 {
		rt.Stick("copy")
		ended := make(chan error)
		go func() { ended <- e.Write(m, 0, make([]byte, 4096)) }()
		for rt.Stuck() == 0 {
			time.Sleep(time.Millisecond)
		}
		rt.LetGo()
		require.NoError(t, <-ended)
	}
	require.NoError(t, m.Close())
	require.NoError(t, e.Close())
}

// BenchmarkHand is what it costs to have a hand do something.
func BenchmarkHand(b *testing.B) {
	h := newHand(newWatch())
	defer h.close()
	nothing := func() error { return nil }
	for b.Loop() {
		if err := h.do(nothing); err != nil {
			b.Fatal(err)
		}
	}
}
