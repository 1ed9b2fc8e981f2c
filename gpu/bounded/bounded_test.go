package bounded

import (
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/calls"
	"github.com/lanefs/lanefs/gpu/gputest/detached"
	"github.com/lanefs/lanefs/gpu/host"
	"github.com/lanefs/lanefs/kernels/kerneltest"
)

// sticking is the host runtime with calls that stick, as what they are asked for: a vendor's library would say their names.
type sticking struct {
	gpu.Runtime
	detached.Calls
}

func (s *sticking) call(name string) {
	calls.Begins(name)
	s.Call(name)
}

func (s *sticking) Alloc(kind gpu.MemKind, n int64) (gpu.Memory, error) {
	s.call("alloc")
	m, err := s.Runtime.Alloc(kind, n)
	return stickingMemory{m, s}, err
}

func (s *sticking) Reserve(size, most int64) (gpu.Range, error) {
	s.call("reserve")
	m, err := s.Runtime.Reserve(size, most)
	return stickingRange{m, s}, err
}

func (s *sticking) Register(b []byte, as gpu.Registered) (gpu.Memory, error) {
	s.call("register")
	return s.Runtime.Register(b, as)
}

func (s *sticking) Load(image []byte) (gpu.Module, error) {
	s.call("load")
	m, err := s.Runtime.Load(image)
	return stickingModule{m, s}, err
}

func (s *sticking) NewStream() (gpu.Stream, error) {
	s.call("stream")
	st, err := s.Runtime.NewStream()
	return stickingStream{st, s}, err
}

func (s *sticking) Import(e gpu.Export) (gpu.Memory, error) {
	s.call("import")
	m, err := s.Runtime.Import(e)
	return stickingMemory{m, s}, err
}

func (s *sticking) Close() error {
	s.call("close")
	return s.Runtime.Close()
}

type stickingMemory struct {
	gpu.Memory
	s *sticking
}

func (m stickingMemory) Export(k gpu.ExportKind) (gpu.Export, error) {
	m.s.call("export")
	return m.Memory.Export(k)
}

func (m stickingMemory) Close() error {
	m.s.call("free")
	return m.Memory.Close()
}

func (m stickingMemory) Reach() gpu.Reach {
	at := m.Memory.Reach()
	at.Keeper = m.s
	return at
}

func (s *sticking) Revoked() error { return nil }

func (s *sticking) Arrived() error {
	s.call("arrived")
	return nil
}

type stickingRange struct {
	gpu.Range
	s *sticking
}

func (m stickingRange) Grow(n int64) error {
	m.s.call("grow")
	return m.Range.Grow(n)
}

func (m stickingRange) Close() error {
	m.s.call("free")
	return m.Range.Close()
}

type stickingModule struct {
	gpu.Module
	s *sticking
}

func (m stickingModule) Function(name string) (gpu.Function, error) {
	m.s.call("function")
	return m.Module.Function(name)
}

func (m stickingModule) Close() error {
	m.s.call("unload")
	return m.Module.Close()
}

type stickingStream struct {
	gpu.Stream
	s *sticking
}

func (st stickingStream) Copy(dst, src gpu.Addr, n int64) error {
	st.s.call("copy")
	return st.Stream.Copy(dst, src, n)
}

func (st stickingStream) Close() error {
	st.s.call("destroy")
	return st.Stream.Close()
}

// TestHangs: of each call that does not return nobody waits for the end. The error names it, each call after it has the same error at once, and the runtime says that it is lost.
func TestHangs(t *testing.T) {
	for _, name := range []string{"alloc", "reserve", "register", "load", "stream", "export", "free", "grow", "function", "unload", "copy", "destroy", "import", "arrived", "close"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they wait, mostly
			rt, err := host.Open(host.Options{})
			require.NoError(t, err)
			s := &sticking{Runtime: rt}
			t.Cleanup(s.LetGo)
			r := New(s, Options{})
			m, err := r.Alloc(gpu.HostMapped, 4096)
			require.NoError(t, err)
			grows, err := r.Reserve(1<<21, 1<<22)
			require.NoError(t, err)
			image, err := kerneltest.Image(rt.Facts().Arch)
			require.NoError(t, err)
			mod, err := r.Load(image)
			require.NoError(t, err)
			st, err := r.NewStream()
			require.NoError(t, err)
			st = Stream(r, st)
			require.NoError(t, r.Lost())

			r.o.Limit = 200 * time.Millisecond // of the call that hangs alone: on a busy machine those before may take as long
			s.Stick(name)
			all := map[string]func() error{
				"alloc":    func() error { _, err := r.Alloc(gpu.HostMapped, 4096); return err },
				"reserve":  func() error { _, err := r.Reserve(1<<21, 1<<22); return err },
				"register": func() error { _, err := r.Register(m.Host(), gpu.RegisteredMemory); return err },
				"load":     func() error { _, err := r.Load(nil); return err },
				"stream":   func() error { _, err := r.NewStream(); return err },
				"export":   func() error { _, err := m.Export(gpu.ExportMemFD); return err },
				"free":     m.Close,
				"grow":     func() error { return grows.Grow(1 << 22) },
				"function": func() error { _, err := mod.Function("none"); return err },
				"unload":   mod.Close,
				"copy":     func() error { return st.Copy(m.Addr(), m.Addr(), 1) },
				"destroy":  st.Close,
				"import":   func() error { _, err := Import(r, gpu.Export{Size: 4096, Kind: gpu.ExportDMABUF}); return err }, // of standard input
				"arrived":  m.Reach().Keeper.Arrived,
				"close":    r.Close,
			}
			err = all[name]()
			require.ErrorIs(t, err, calls.ErrHangs)
			require.ErrorContains(t, err, "host runtime: "+name+" does not return, after 200ms")
			require.Equal(t, err, r.Lost())
			require.EqualValues(t, 1, s.Stuck())
			for other, f := range all {
				require.Equal(t, err, f(), other)
			}
			require.EqualValues(t, 1, s.Stuck(), "no call is made after it")
			s.LetGo()
			require.Equal(t, err, r.Lost(), "nor if it returns later")
		})
	}
}

// TestOfOthers: a call that may wait for others than the GPU is given up, too. That alone makes no GPU lost, what it gives at last is closed, there are only so many such calls at a time, and
// the runtime's end does not wait for them.
func TestOfOthers(t *testing.T) {
	for name, of := range map[string]func(r *Runtime, e gpu.Export, b []byte) (gpu.Memory, error){
		"import": func(r *Runtime, e gpu.Export, _ []byte) (gpu.Memory, error) { return r.Import(e) },
		"register": func(r *Runtime, _ gpu.Export, b []byte) (gpu.Memory, error) {
			return r.Register(b, gpu.RegisteredReadOnly)
		},
	} {
		t.Run(name, func(t *testing.T) {
			rt, err := host.Open(host.Options{})
			require.NoError(t, err)
			s := &sticking{Runtime: rt}
			t.Cleanup(s.LetGo)
			r := New(s, Options{})
			pages, err := r.Alloc(gpu.DeviceFine, 4096)
			require.NoError(t, err)
			e, err := pages.Export(gpu.ExportMemFD)
			require.NoError(t, err)
			m, err := of(r, e, pages.Host())
			require.NoError(t, err)
			require.NoError(t, m.Close())
			before := descriptors(t)

			r.o.Limit = 50 * time.Millisecond // of the calls that hang alone: on a busy machine others may take as long
			s.Stick(name)
			var calling sync.WaitGroup
			for range mostOwn {
				calling.Go(func() {
					_, err := of(r, e, pages.Host())
					assert.ErrorIs(t, err, calls.ErrHangs)
					assert.ErrorContains(t, err, "host runtime: "+name+" does not return, after 50ms")
				})
			}
			calling.Wait()
			require.EqualValues(t, mostOwn, s.Stuck())
			r.o.Limit = Limit
			_, err = of(r, e, pages.Host())
			require.ErrorContains(t, err, "256 such calls have not returned: the GPU or its driver hangs")
			require.NoError(t, r.Lost())
			m, err = r.Alloc(gpu.HostMapped, 4096)
			require.NoError(t, err, "all else goes on")
			require.NoError(t, m.Close())

			s.LetGo()
			require.Eventually(t, func() bool { return r.own.Load() == 0 && descriptors(t) < before+mostOwn/2 }, time.Minute, time.Millisecond, "what came late is closed")
			m, err = of(r, e, pages.Host())
			require.NoError(t, err)
			require.NoError(t, m.Close())
			require.NoError(t, unix.Close(e.FD))
			require.NoError(t, pages.Close())

			r = New(s, Options{Limit: time.Minute})
			r.own.Add(1)
			s.Stick("close")
			require.ErrorContains(t, r.Close(), "host runtime: close does not return, after 2s")
			s.LetGo()
			require.Eventually(t, func() bool { return s.Stuck() == 0 }, time.Minute, time.Millisecond)
		})
	}
}

// TestDirect: what calls no driver is not bounded, which costs a flush more than it takes.
func TestDirect(t *testing.T) {
	rt, err := host.Open(host.Options{})
	require.NoError(t, err)
	r := New(&sticking{Runtime: rt}, Options{})
	m, err := r.Alloc(gpu.HostMapped, 4096)
	require.NoError(t, err)
	require.IsType(t, keeper{}, m.Reach().Keeper)
	direct := memory{directMemory{m.(memory).Memory}, r}
	require.Equal(t, directKeeper{}, direct.Reach().Keeper)
	require.NoError(t, m.Close())
}

type directMemory struct{ gpu.Memory }

func (directMemory) Reach() gpu.Reach { return gpu.Reach{Keeper: directKeeper{}} }

type directKeeper struct{ gpu.Keeper }

func (directKeeper) Direct() {}

// descriptors is how many the process has open, to which calls of other tests that return late may add a few.
func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(all)
}

// TestRefusedImport: an import that is not made, since the GPU hangs, keeps no descriptor.
func TestRefusedImport(t *testing.T) {
	rt, err := host.Open(host.Options{})
	require.NoError(t, err)
	s := &sticking{Runtime: rt}
	t.Cleanup(s.LetGo)
	r := New(s, Options{Limit: 20 * time.Millisecond})
	s.Stick("alloc")
	_, err = r.Alloc(gpu.HostMapped, 4096)
	require.ErrorIs(t, err, calls.ErrHangs)
	before := descriptors(t)
	for range 10 {
		_, err = r.Import(gpu.Export{Size: 4096, Kind: gpu.ExportMemFD})
		require.Equal(t, r.Lost(), err)
		_, err = Import(r, gpu.Export{Size: 4096, Kind: gpu.ExportMemFD})
		require.Equal(t, r.Lost(), err)
	}
	require.Less(t, descriptors(t), before+10)
}

// TestStop: who waits for a call that does not return hears soon of the user's wish for an end.
func TestStop(t *testing.T) {
	rt, err := host.Open(host.Options{})
	require.NoError(t, err)
	s := &sticking{Runtime: rt}
	t.Cleanup(s.LetGo)
	stop := make(chan struct{})
	r := New(s, Options{Limit: time.Minute, Stop: stop})
	s.Stick("alloc")
	go func() {
		for s.Stuck() == 0 {
			time.Sleep(time.Millisecond)
		}
		close(stop)
	}()
	_, err = r.Alloc(gpu.HostMapped, 4096)
	require.ErrorContains(t, err, "host runtime: interrupted when alloc had not returned")
}
