package engine_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/bounded"
	"github.com/lanefs/lanefs/gpu/gputest/detached"
	"github.com/lanefs/lanefs/gpu/host"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/internal/testrig"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// stuckDriver is a device of which calls of some kinds do not return until they are let go of. Then they do what they were to do.
type stuckDriver struct {
	*detached.Runtime
	detached.Calls
	streams int          // made so far
	changed atomic.Int64 // launches whose arguments changed while they were stuck
}

func (d *stuckDriver) Alloc(kind gpu.MemKind, size int64) (gpu.Memory, error) {
	d.Call("alloc")
	m, err := d.Runtime.Alloc(kind, size)
	return stuckMemory{m, d}, err
}

type stuckMemory struct {
	gpu.Memory
	d *stuckDriver
}

func (m stuckMemory) Close() error {
	m.d.Call("free")
	return m.Memory.Close()
}

func (d *stuckDriver) NewStream() (gpu.Stream, error) {
	s, err := d.Runtime.NewStream()
	d.streams++
	return stuckStream{s, d, d.streams == 1}, err
}

// stuckStream has setup set if it is the engine's first, on which lanes are reset.
type stuckStream struct {
	gpu.Stream
	d     *stuckDriver
	setup bool
}

func (s stuckStream) Launch(f gpu.Function, grid, block gpu.Dim3, args ...uint64) error {
	given := slices.Clone(args)
	defer func() {
		if !slices.Equal(given, args) {
			s.d.changed.Add(1)
		}
	}()
	if s.setup {
		s.d.Call("reset")
	} else {
		s.d.Call("launch")
	}
	return s.Stream.Launch(f, grid, block, args...)
}

func (s stuckStream) Copy(dst, src gpu.Addr, n int64) error {
	s.d.Call("copy")
	return s.Stream.Copy(dst, src, n)
}

func (s stuckStream) Done() (bool, error) {
	s.d.Call("query")
	return s.Stream.Done()
}

func (s stuckStream) Wait(limit time.Duration) error {
	s.d.Call("query")
	return s.Stream.Wait(limit)
}

// newStuck is a rig over such a device. opened is called while a failover opens the spare; nil: there is none.
func newStuck(t *testing.T, ec engine.Config, opened func(*stuckDriver)) (*failing, *stuckDriver) {
	t.Helper()
	var d *stuckDriver
	of := func(dev *detached.Runtime) gpu.Runtime {
		d = &stuckDriver{Runtime: dev}
		return d
	}
	var spare func() (gpu.Runtime, error)
	if opened != nil {
		spare = func() (gpu.Runtime, error) {
			opened(d)
			return host.Open(host.Options{})
		}
	}
	f := newFailingRuntime(t, testrig.NewImage(t), of, spare, false, softctl.Options{}, ec, func(t controller.Transport) controller.Transport { return t })
	t.Cleanup(d.LetGo)
	return f, d
}

// unstuck is what a failover does that changes nothing.
func unstuck(*stuckDriver) {}

// returned waits until no call is stuck, and all that were given up have been heard of.
func (d *stuckDriver) returned(t *testing.T, f *failing) {
	t.Helper()
	until(t, "the calls return", func() bool {
		return d.Stuck() == 0 && f.Log.Count("and is given up") == f.Log.Count("that was given up")
	})
}

// TestDriverCallHangs: a call of the GPU's driver that does not return is a failure of the GPU: the lanes move to the CPU, and callers notice nothing. When it returns later, in
// the failover or after it, it changes nothing, whatever it begins. Nor does it matter that several calls hang, or that somebody reads the counters.
func TestDriverCallHangs(t *testing.T) {
	for _, kinds := range [][]string{{"launch"}, {"query"}, {"launch", "query", "reset"}} {
		for _, batch := range []bool{false, true} {
			for _, late := range []string{"in the failover", "after it", "at the end"} {
				name := kinds[0] + map[bool]string{true: " and more"}[len(kinds) > 1] + map[bool]string{true: ", batches"}[batch] + ", returns " + late
				t.Run(name, func(t *testing.T) {
					t.Parallel() // they wait, mostly
					ec := engine.Config{Lanes: 2, Batch: batch, HangTimeout: 500 * time.Millisecond}
					f, d := newStuck(t, ec, func(d *stuckDriver) {
						if late == "in the failover" {
							d.LetGo()
							for end := time.Now().Add(time.Minute); d.Stuck() > 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
							}
						}
					})
					rounds, stop := f.write(t)
					until(t, "some rounds", func() bool { return rounds.Load() > 20 })
					before := f.Engine.Stats()
					d.Stick(kinds...)
					read := make(chan []engine.LaneStats, 1)
					go func() { read <- f.Engine.Stats() }()
					until(t, "the lanes move", func() bool { return f.Controller.Failover() != nil })
					require.Len(t, <-read, 2)
					after := rounds.Load()
					until(t, "more rounds", func() bool { return rounds.Load() > after+20 })
					if late == "after it" {
						d.LetGo()
						d.returned(t, f)
						after = rounds.Load()
						until(t, "rounds with what the call began", func() bool { return rounds.Load() > after+20 })
					}
					stop()
					require.Regexp(t, "a call of the GPU's driver does not return", f.Controller.Failover().Why)
					require.Positive(t, f.Log.Count("and is given up"))
					require.Equal(t, 1, f.Log.Count("the lanes have failed and move"))
					require.NotZero(t, f.Controller.LeftMemory())
					require.NoError(t, f.Controller.Err())
					for i, s := range f.Engine.Stats() {
						require.Zero(t, s.Spurious+s.Errors, "lane %d", s.Lane)
						for _, was := range before {
							require.NotEqual(t, was.QID, s.QID, "lane %d: what the call begins may ring there", i)
						}
					}
					require.Zero(t, d.changed.Load())
					require.NoError(t, f.Engine.Close())
					if late == "at the end" {
						require.Positive(t, d.Stuck(), "it hangs yet")
					}
				})
			}
		}
	}
}

// TestDriverCallHangsInReset: the call that hangs is one by which a reset sets up a lane.
func TestDriverCallHangsInReset(t *testing.T) {
	f, d := newStuck(t, engine.Config{Lanes: 2, HangTimeout: 500 * time.Millisecond}, unstuck)
	rounds, stop := f.write(t)
	until(t, "some rounds", func() bool { return rounds.Load() > 20 })
	d.Stick("reset")
	require.NoError(t, f.Controller.Reset())
	require.NotNil(t, f.Controller.Failover())
	after := rounds.Load()
	until(t, "more rounds", func() bool { return rounds.Load() > after+20 })
	d.LetGo()
	d.returned(t, f)
	after = rounds.Load()
	until(t, "rounds with what the call began", func() bool { return rounds.Load() > after+20 })
	stop()
}

// TestDriverCallIsSlow: a call that takes long, but not too long, is waited for, and no call hangs since.
func TestDriverCallIsSlow(t *testing.T) {
	f, d := newStuck(t, engine.Config{Lanes: 2, HangTimeout: time.Minute}, unstuck)
	rounds, stop := f.write(t)
	until(t, "some rounds", func() bool { return rounds.Load() > 20 })
	d.Stick("launch")
	until(t, "a launch is stuck", func() bool { return d.Stuck() > 0 })
	d.LetGo()
	after := rounds.Load()
	until(t, "more rounds", func() bool { return rounds.Load() > after+20 })
	stop()
	require.Nil(t, f.Controller.Failover())
	require.Zero(t, f.Log.Count("given up"))
}

// TestDriverCallHangsWithoutSpare: where nothing else can run the lanes every command fails, and none waits.
func TestDriverCallHangsWithoutSpare(t *testing.T) {
	f, d := newStuck(t, engine.Config{Lanes: 2, HangTimeout: 500 * time.Millisecond}, nil)
	c := f.Chunk(t, 4096)
	until(t, "no kernel runs", func() bool { return f.dev.Running() == 0 })
	d.Stick("launch", "query", "reset")
	read := []engine.Command{f.RW(nvme.IORead, 0, c, 0, 4096)}
	require.ErrorContains(t, f.Engine.Do(0, read), "no other runtime can run the lanes")
	require.ErrorContains(t, f.Engine.Do(1, read), "out of service")
	require.ErrorContains(t, f.Engine.Close(), "its memory is left allocated")
	require.Positive(t, d.Stuck())
	d.LetGo()
	d.returned(t, f)
}

// TestDriverCallHangsAtTheEnd: an idle engine whose runtime's driver hangs is closed, and the controller. Nothing of the runtime is freed.
func TestDriverCallHangsAtTheEnd(t *testing.T) {
	f, d := newStuck(t, engine.Config{Lanes: 2, HangTimeout: 500 * time.Millisecond}, unstuck)
	until(t, "no kernel runs", func() bool { return f.dev.Running() == 0 })
	d.Stick("launch", "query", "reset", "free")
	require.ErrorContains(t, f.Engine.Close(), "its memory is left allocated")
	require.True(t, f.Controller.RuntimeFailed())
	require.NotZero(t, f.Controller.LeftMemory())
	require.NoError(t, f.Controller.Close())
}

// TestMemoryCallHangs: while memory is allocated or freed no kernel may run. Where that does not return the lanes' deadlines hold, they move, and the call is given up.
func TestMemoryCallHangs(t *testing.T) {
	for _, kind := range []string{"alloc", "free"} {
		t.Run(kind, func(t *testing.T) {
			f, d := newStuck(t, engine.Config{Lanes: 2, Timeout: time.Second, HangTimeout: 500 * time.Millisecond}, unstuck)
			data, err := f.Controller.AllocData(1 << 20)
			require.NoError(t, err)
			rounds, stop := f.write(t)
			until(t, "some rounds", func() bool { return rounds.Load() > 20 })
			d.Stick(kind)
			ended := make(chan error, 1)
			go func() {
				if kind == "alloc" {
					_, err := f.Controller.AllocData(1 << 20)
					ended <- err
				} else {
					ended <- data.Close()
				}
			}()
			until(t, "it hangs", func() bool { return d.Stuck() > 0 })
			beside := make(chan error, 1)
			go func() { beside <- f.Controller.Quiesced(func() error { return nil }) }()
			until(t, "the lanes move", func() bool { return f.Controller.Failover() != nil })
			require.ErrorContains(t, <-ended, "a call of its driver does not return")
			require.NoError(t, <-beside, "who has waited for its end goes on")
			after := rounds.Load()
			until(t, "more rounds", func() bool { return rounds.Load() > after+20 })
			left := f.Controller.LeftMemory()
			require.GreaterOrEqual(t, left, int64(1<<20))
			d.LetGo()
			until(t, "the call returns", func() bool { return d.Stuck() == 0 })
			after = rounds.Load()
			until(t, "more rounds", func() bool { return rounds.Load() > after+20 })
			stop()
			if kind == "alloc" {
				require.NoError(t, data.Close(), "which is only unmapped now")
				require.Equal(t, left+1<<20, f.Controller.LeftMemory())
			}
		})
	}
}

// TestMemoryCallIsBounded: an allocation that does not return, on a GPU whose lanes have nothing to do, is given up. The lanes move, and who wants memory has the spare runtime's.
func TestMemoryCallIsBounded(t *testing.T) {
	var d *stuckDriver
	of := func(dev *detached.Runtime) gpu.Runtime {
		d = &stuckDriver{Runtime: dev}
		return bounded.New(d, bounded.Options{Limit: 500 * time.Millisecond})
	}
	spare := func() (gpu.Runtime, error) { return host.Open(host.Options{}) }
	f := newFailingRuntime(t, testrig.NewImage(t), of, spare, false, softctl.Options{}, engine.Config{Lanes: 2}, func(t controller.Transport) controller.Transport { return t })
	t.Cleanup(d.LetGo)
	until(t, "no kernel runs", func() bool { return f.dev.Running() == 0 })
	d.Stick("alloc")
	c, err := f.Controller.AllocData(1 << 20)
	require.NoError(t, err)
	require.Positive(t, d.Stuck(), "it hangs yet")
	require.NotNil(t, f.Controller.Failover())
	require.Contains(t, f.Controller.Failover().Why, "does not return")
	f.transfer(t, c, 0, 4096, 1)
	require.NoError(t, c.Close())
	require.NoError(t, f.Engine.Close())
}
