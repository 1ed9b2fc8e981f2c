package bounded

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
	return s.Runtime.Import(e)
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
	for _, name := range []string{"alloc", "reserve", "register", "load", "stream", "export", "free", "grow", "function", "unload", "copy", "destroy", "import", "close"} {
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

// TestOfOthers: what may wait for others than the GPU is waited for.
func TestOfOthers(t *testing.T) {
	rt, err := host.Open(host.Options{})
	require.NoError(t, err)
	s := &sticking{Runtime: rt}
	t.Cleanup(s.LetGo)
	r := New(s, Options{Limit: 20 * time.Millisecond})
	s.Stick("register", "import")
	for _, of := range []func() (gpu.Memory, error){
		func() (gpu.Memory, error) { return r.Register(make([]byte, 4096), gpu.RegisteredReadOnly) },
		func() (gpu.Memory, error) { return r.Import(gpu.Export{Size: 4096, Kind: gpu.ExportLegacy}) },
	} {
		ended := make(chan error, 1)
		go func() {
			_, err := of()
			ended <- err
		}()
		select {
		case err := <-ended:
			t.Error(err)
		case <-time.After(time.Second):
		}
	}
	require.NoError(t, r.Lost())
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
