package engine_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/gputest/detached"
	"github.com/lanefs/lanefs/gpu/host"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/internal/testrig"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// Failovers that fail: each call that one makes of the spare, of the runtime of the lanes on the CPU and of the transport fails in turn.

// faults has one of the calls fail that are made since arm.
type faults struct {
	mu    sync.Mutex
	armed bool
	at    int    // which call, from 1; 0: none
	n     int    // so many were made
	which string // has failed
	open  int    // what was had from the runtimes, and not closed
}

func (f *faults) arm(at int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed, f.at = true, at
}

// call is the error of a call.
func (f *faults) call(format string, args ...any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.armed {
		return nil
	}
	if f.n++; f.n != f.at {
		return nil
	}
	f.which = fmt.Sprintf(format, args...)
	return fmt.Errorf("%s fails as a test wants it", f.which)
}

func (f *faults) failed() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.which
}

// closed counts what was opened, and its Close is a call that may fail when all is done.
func (f *faults) closed(what string, closer func() error) error {
	f.mu.Lock()
	f.open--
	f.mu.Unlock()
	return errors.Join(closer(), f.call("closing %s", what))
}

func (f *faults) opened() {
	f.mu.Lock()
	f.open++
	f.mu.Unlock()
}

// faulty is the host runtime with faults. The CPU does not see memory number hidden, as it does not see a device's.
type faulty struct {
	gpu.Runtime
	*faults
	name   string
	hidden int
	allocs int
}

func (r *faulty) Name() string { return r.name }

func (r *faulty) Close() error { return r.closed(r.name, r.Runtime.Close) }

func (r *faulty) Alloc(kind gpu.MemKind, size int64) (gpu.Memory, error) {
	r.allocs++
	return r.memory(fmt.Sprintf("memory %d", r.allocs), func() (gpu.Memory, error) { return r.Runtime.Alloc(kind, size) })
}

func (r *faulty) Register(b []byte, as gpu.Registered) (gpu.Memory, error) {
	return r.memory("the BAR", func() (gpu.Memory, error) { return r.Runtime.Register(b, as) })
}

func (r *faulty) memory(what string, get func() (gpu.Memory, error)) (gpu.Memory, error) {
	what += " of " + r.name
	if err := r.call("getting %s", what); err != nil {
		return nil, err
	}
	m, err := get()
	if err != nil {
		return nil, err
	}
	r.opened()
	return faultyMemory{m, r, what, r.allocs == r.hidden}, nil
}

type faultyMemory struct {
	gpu.Memory
	r      *faulty
	what   string
	hidden bool
}

func (m faultyMemory) Host() []byte {
	if m.hidden {
		return nil
	}
	return m.Memory.Host()
}

func (m faultyMemory) Close() error { return m.r.closed(m.what, m.Memory.Close) }

func (r *faulty) Load(image []byte) (gpu.Module, error) {
	r.allocs = 0
	if err := r.call("loading"); err != nil {
		return nil, err
	}
	m, err := r.Runtime.Load(image)
	if err != nil {
		return nil, err
	}
	r.opened()
	return faultyModule{m, r}, nil
}

type faultyModule struct {
	gpu.Module
	r *faulty
}

func (m faultyModule) Function(name string) (gpu.Function, error) {
	if err := m.r.call("finding %s", name); err != nil {
		return nil, err
	}
	return m.Module.Function(name)
}

func (m faultyModule) Close() error { return m.r.closed("the module of "+m.r.name, m.Module.Close) }

func (r *faulty) NewStream() (gpu.Stream, error) {
	if err := r.call("making a stream of %s", r.name); err != nil {
		return nil, err
	}
	s, err := r.Runtime.NewStream()
	if err != nil {
		return nil, err
	}
	r.opened()
	return faultyStream{s, r}, nil
}

type faultyStream struct {
	gpu.Stream
	r *faulty
}

func (s faultyStream) Launch(f gpu.Function, grid, block gpu.Dim3, args ...uint64) error {
	if len(args) == 2 { // a reset: steps have the time, too
		if err := s.r.call("launching %s on %s", f.Name(), s.r.name); err != nil {
			return err
		}
	}
	return s.Stream.Launch(f, grid, block, args...)
}

func (s faultyStream) Wait(limit time.Duration) error {
	if err := s.r.call("waiting on %s", s.r.name); err != nil {
		return err
	}
	return s.Stream.Wait(limit)
}

func (s faultyStream) Fill(dst gpu.Addr, v byte, n int64) error {
	if err := s.r.call("filling"); err != nil {
		return err
	}
	return s.Stream.Fill(dst, v, n)
}

func (s faultyStream) Copy(dst, src gpu.Addr, n int64) error {
	if err := s.r.call("copying"); err != nil {
		return err
	}
	return s.Stream.Copy(dst, src, n)
}

func (s faultyStream) Close() error { return s.r.closed("a stream of "+s.r.name, s.Stream.Close) }

// faultyReach is a transport with faults. What it cannot unmap it does not have any more.
type faultyReach struct {
	*reach
	*faults
	resets *atomic.Int64
}

func (r faultyReach) Reset() error {
	r.resets.Add(1)
	return r.reach.Reset()
}

func (r faultyReach) Map(m gpu.Memory, off, n int64) (nvme.IOVA, error) {
	if err := r.call("mapping %d bytes", n); err != nil {
		return 0, err
	}
	return r.reach.Map(m, off, n)
}

func (r faultyReach) Unmap(a nvme.IOVA) error {
	return errors.Join(r.reach.Unmap(a), r.call("unmapping"))
}

// lanesMemory is the number of the memory with the lane structs, where the doorbells' bridge has memory.
const lanesMemory = 7

// TestFailoverFails: whatever fails in a failover, every command under way ends, with an error that says why the lanes had to move and what failed
// then. Nothing stays mapped or allocated, and the counters are what they were.
func TestFailoverFails(t *testing.T) {
	common := []string{"opening the spare", "loading", "finding lanefs_reset", "finding lanefs_step", "getting memory 1 of the spare", "getting memory 6 of the spare",
		"mapping 8192 bytes", "making a stream of the spare", "launching lanefs_reset on the spare", "waiting on the spare", "unmapping",
		"getting memory 5 of the CPU's", "getting the BAR of the CPU's", "launching lanefs_reset on the CPU's", "closing memory 1 of the CPU's",
		"closing the BAR of the CPU's", "closing a stream of the CPU's", "closing the module of the CPU's"}
	for name, c := range map[string]struct {
		route  engine.DoorbellRoute
		hidden int
		also   []string
	}{
		"the CPU sees all":                 {engine.DoorbellBAR, 0, []string{"getting the BAR of the spare"}},
		"the CPU does not see the structs": {engine.DoorbellBridge, lanesMemory, []string{"getting memory 7 of the spare", "filling", "getting memory 8 of the spare", "copying"}},
	} {
		t.Run(name, func(t *testing.T) {
			seen := map[string]bool{}
			for at, which := 1, "-"; which != ""; at++ {
				which = ""
				t.Run(fmt.Sprint(at), func(t *testing.T) { which = failoverFails(t, c.route, c.hidden, at) })
				seen[which] = true
			}
			for _, which := range append(common, c.also...) {
				require.True(t, seen[which] || t.Failed(), "%s is not among %v", which, seen)
			}
		})
	}
}

// failoverFails has the call of that number fail, which it names; empty: there were not so many.
func failoverFails(t *testing.T, route engine.DoorbellRoute, hidden, at int) string {
	calls := &faults{}
	open := func(name string, hidden int) *faulty {
		rt, err := host.Open(host.Options{})
		require.NoError(t, err)
		calls.opened()
		return &faulty{Runtime: rt, faults: calls, name: name, hidden: hidden}
	}
	cpu := open("the CPU's", 0)
	spare := func() (gpu.Runtime, error) {
		if err := calls.call("opening the spare"); err != nil {
			return nil, err
		}
		return open("the spare", hidden), nil
	}
	var mapped *reach
	var resets atomic.Int64
	f := newFailingSpare(t, testrig.NewImage(t), spare, false, softctl.Options{Queues: 12},
		engine.Config{Lanes: 2, CPULanes: 1, CPU: cpu, LateAfter: time.Minute, Doorbell: route},
		func(t controller.Transport) controller.Transport {
			mapped = t.(*reach)
			return faultyReach{mapped, calls, &resets}
		})
	c := f.Chunk(t, 64<<10)
	f.transfer(t, c, 0, 4096, 1)
	before := f.Engine.Stats()

	calls.arm(at)
	why := "out of resources"
	if at%2 == 0 {
		why = "the device is lost"
		f.dev.Lose()
	} else {
		f.dev.Refuse()
	}
	var ended sync.WaitGroup
	errs := make([]error, 8) // of callers on all lanes, two on each
	for i := range errs {
		ended.Go(func() {
			for errs[i] == nil && f.Controller.Failover() == nil && f.Controller.Err() == nil {
				errs[i] = f.Engine.Do(i, []engine.Command{f.RW(nvme.IORead, uint64(i), c, int64(i)*4096, 4096)})
			}
			if errs[i] == nil { // the failover may have failed since
				errs[i] = f.Engine.Do(i, []engine.Command{f.RW(nvme.IORead, uint64(i), c, int64(i)*4096, 4096)})
			}
		})
	}
	ended.Wait()
	calls.arm(0)
	which := calls.failed()
	leaves := which == "unmapping" || strings.HasPrefix(which, "closing ") && !strings.HasPrefix(which, "closing memory 8 ")
	goesOn := which == "" || leaves || strings.HasPrefix(which, "closing ") || which == "getting the BAR of the spare" && route == engine.DoorbellAuto
	after := f.Engine.Stats()
	require.Len(t, after, len(before))
	for i := range after {
		require.GreaterOrEqual(t, after[i].Commands, before[i].Commands)
		require.LessOrEqual(t, after[i].Completions, after[i].Commands)
		require.Zero(t, after[i].Errors+after[i].Spurious+after[i].Timeouts)
	}
	for i, err := range errs {
		if goesOn {
			require.NoError(t, err, "caller %d", i)
			continue
		}
		require.ErrorContains(t, err, "out of service", "caller %d", i)
		require.ErrorContains(t, err, which+" fails as a test wants it", "what failed in the failover")
		require.ErrorContains(t, err, why, "why the lanes had to move")
		require.NotContains(t, err.Error(), "reset failed", "there was none")
	}
	require.Equal(t, goesOn, resets.Load() == 0, "a controller that is given up must not access memory any more, which may be freed")
	require.Equal(t, !goesOn, f.Log.Count("controller given up") == 1)
	require.Equal(t, goesOn, f.Log.Count("controller reset") == 1)
	require.Equal(t, which != "opening the spare", f.Log.Count("the lanes have failed and move") == 1)
	require.Equal(t, leaves, f.Log.Count("memory of the lanes that have moved is left") == 1)

	if err := f.Engine.Close(); goesOn {
		require.NoError(t, err)
	} else if err != nil {
		require.ErrorContains(t, err, "its memory is left allocated", "of lanes that have not moved")
	}
	require.NoError(t, c.Close())
	require.NoError(t, f.Controller.Close())
	require.Empty(t, mapped.now)
	if err := cpu.Close(); which == "unmapping" && err != nil {
		require.ErrorContains(t, err, "closed with 1 memories, 0 modules and 0 streams", "what may be mapped yet is not freed")
	} else {
		require.NoError(t, err, "the runtime finds leaks")
		require.Zero(t, calls.open)
	}
	return which
}

// TestResetFails: the error of a reset that fails says what failed, and why there was a reset; where the lanes were to move then, that too. The controller does not
// access memory any more.
func TestResetFails(t *testing.T) {
	identify := uint8(nvme.AdminIdentify)
	unidentified := func(f *failing) {
		f.Rules.Add(softctl.Rule{Admin: true, Opcode: &identify, Do: softctl.Verdict{Status: softctl.Status(nvme.StatusInternal)}})
	}
	why := errors.New("as a test wants it")
	for name, c := range map[string]struct {
		spare bool
		why   error
		fail  func(f *failing)
		want  string
	}{
		"the controller": {false, why, unidentified, `out of service: reset failed: .*Internal Error.*; it was reset because: as a test wants it`},
		"the controller, for the spare": {true, controller.RuntimeError{Err: why}, unidentified,
			`out of service: as a test wants it; moving the lanes to host: .*Internal Error`},
		"the lanes": {false, why, func(f *failing) { f.dev.Refuse() },
			`out of service: reset failed: lane 0: .*out of resources; no other runtime can run the lanes; it was reset because: as a test wants it`},
	} {
		t.Run(name, func(t *testing.T) {
			var resets atomic.Int64
			f := newFailingOn(t, c.spare, false, softctl.Options{}, engine.Config{Lanes: 2}, func(t controller.Transport) controller.Transport {
				return faultyReach{t.(*reach), &faults{}, &resets}
			})
			data := f.Chunk(t, 4096)
			until(t, "no kernel runs", func() bool { return f.dev.Running() == 0 })
			c.fail(f)
			f.Controller.Recover(f.Controller.Generation(), c.why)
			require.Regexp(t, c.want, f.Controller.Err())
			require.ErrorIs(t, f.Engine.Do(0, []engine.Command{f.RW(nvme.IORead, 0, data, 0, 4096)}), f.Controller.Err())
			require.EqualValues(t, 1, resets.Load())
		})
	}
}

// hiding is a runtime whose device memory the CPU does not see, seeing a controller that does nevertheless, as one in hardware does.
type hiding struct{ *faulty }

func (h hiding) Alloc(kind gpu.MemKind, size int64) (gpu.Memory, error) {
	m, err := h.faulty.Alloc(kind, size)
	if fm, ok := m.(faultyMemory); ok && kind.Device() {
		fm.hidden = true
		m = fm
	}
	return m, err
}

type seeing struct{ *softctl.Controller }

func (s seeing) Map(m gpu.Memory, off, n int64) (nvme.IOVA, error) {
	if fm, ok := m.(faultyMemory); ok {
		m = fm.Memory
	}
	return s.Controller.Map(m, off, n)
}

// TestMirrorOfFailedGPU: memory that mirrors a GPU's, and the copies between them, are closed with the controller; where the GPU has failed nothing of it is: that may
// wait for ever.
func TestMirrorOfFailedGPU(t *testing.T) {
	for _, fails := range []bool{false, true} {
		dev, err := detached.New(true)
		require.NoError(t, err)
		t.Cleanup(dev.Resume)
		rt := &faulty{Runtime: dev, faults: &faults{}, name: "the GPU"}
		soft, err := softctl.Open(testrig.NewImage(t), softctl.Options{Threads: 1, Log: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		place, err := controller.ModeData.Placement()
		require.NoError(t, err)
		c, err := controller.Open(controller.Config{Runtime: hiding{rt}, Transport: seeing{soft}, Placement: place, Log: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		e, err := engine.New(c, engine.Config{Lanes: 1, HangTimeout: time.Second})
		require.NoError(t, err)
		data, err := c.AllocData(4096)
		require.NoError(t, err)
		require.True(t, data.Mirrored())
		require.NoError(t, data.Push(0, 4096))
		read := []engine.Command{{Op: nvme.IORead, NSID: 1, NLB: 8, Data: data.IOVA(), Len: 4096}}
		require.NoError(t, e.Do(0, read))
		open := rt.open
		if fails {
			dev.Refuse()
			until(t, "reads fail", func() bool { return e.Do(0, read) != nil })
		}
		require.NoError(t, data.Close())
		if fails {
			require.Equal(t, open, rt.open)
		} else {
			require.Equal(t, open-2, rt.open, "the memory and its mirror")
		}
		err = c.Close()
		if fails {
			require.Equal(t, open, rt.open)
		} else {
			require.NoError(t, err)
			require.Zero(t, rt.open)
			require.NoError(t, dev.Close())
		}
		require.NoError(t, soft.Close())
	}
}
