package engine_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/host"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/internal/fill"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// newBoth is a failing rig with lanes of both kinds.
func newBoth(t *testing.T, spare bool, hang time.Duration, so softctl.Options, lanes, cpu int) *failing {
	t.Helper()
	rt := openHost(t)
	ec := engine.Config{Lanes: lanes, CPULanes: cpu, CPU: rt, HangTimeout: hang, LateAfter: 100 * time.Millisecond}
	return newFailing(t, spare, false, so, ec)
}

// transfer writes a pattern and reads it back.
func (f *failing) transfer(t *testing.T, c *controller.Chunk, lba uint64, n int64, seed uint64) {
	t.Helper()
	fill.Fill(c.Bytes()[:n], seed)
	for i, op := range []nvme.Opcode{nvme.IOWrite, nvme.IOFlush, nvme.IORead} {
		cmd := f.RW(op, lba, c, int64(i/2)*n, n)
		if op == nvme.IOFlush {
			cmd = engine.Command{Op: op, NSID: 1}
		}
		require.NoError(t, f.Engine.Do(engine.AnyLane, []engine.Command{cmd}))
	}
	require.True(t, bytes.Equal(c.Bytes()[:n], c.Bytes()[n:2*n]))
}

// submitted is how many commands all lanes have posted.
func submitted(e *engine.Engine) (all, cpu uint64) {
	for _, s := range e.Stats() {
		all += s.Commands
		if s.CPU {
			cpu += s.Commands
		}
	}
	return all, cpu
}

// A GPU that stops answering keeps what was posted there, once; what comes after goes to the CPU. When it answers again large
// batches go back at once.
func TestLateGPU(t *testing.T) {
	f := newBoth(t, false, time.Minute, softctl.Options{Queues: 8}, 2, 2)
	require.Equal(t, 4, f.Engine.Lanes())
	require.Equal(t, 2, f.Engine.CPULanes())
	c, mine := f.Chunk(t, 512<<10), f.Chunk(t, 4096)
	f.transfer(t, c, 0, 4096, 1)

	before, cpuBefore := submitted(f.Engine)
	until(t, "no kernel runs", func() bool { return f.dev.Running() == 0 }) // one that runs goes on, however long it stands still
	f.dev.Hang()
	first := make(chan error, 1)
	go func() { first <- f.Engine.Do(0, []engine.Command{f.RW(nvme.IORead, 0, mine, 0, 4096)}) }()
	chosen := f.Engine.Chosen()
	until(t, "it is late", f.Engine.Late)
	rounds := uint64(0)
	for start := time.Now(); rounds < 20 || time.Since(start) < 300*time.Millisecond; rounds++ { // in which it is probed several times
		f.transfer(t, c, 64+rounds%20, 4096, rounds)
		f.transfer(t, c, 512, 256<<10, rounds)
	}
	require.Equal(t, chosen.Late+6*rounds, f.Engine.Chosen().Late)
	require.Empty(t, first, "it waits for the GPU")

	// Nobody probes for nobody.
	until(t, "probes end", func() bool {
		n := f.dev.Launches()
		time.Sleep(200 * time.Millisecond)
		return n == f.dev.Launches()
	})

	f.dev.Resume()
	require.NoError(t, <-first)
	after, cpu := submitted(f.Engine)
	require.Equal(t, before+1+6*rounds, after, "no command was posted twice")
	require.Equal(t, cpuBefore+6*rounds, cpu)
	until(t, "large batches go back", func() bool {
		f.transfer(t, c, 512, 256<<10, 7)
		return f.Engine.Chosen().GPU > chosen.GPU
	})
	small := f.Engine.Chosen().Small
	until(t, "small ones stay for a while", func() bool {
		f.transfer(t, c, 512, 4096, 8)
		return f.Engine.Chosen().Small > small
	})
	require.Nil(t, f.Controller.Failover())
}

// A broken lane of a GPU that was late does not keep it from being found in time again.
func TestLateGPUBesideBrokenLane(t *testing.T) {
	f := newBoth(t, false, time.Minute, softctl.Options{Queues: 8}, 2, 2)
	c, mine := f.Chunk(t, 512<<10), f.Chunk(t, 4096)
	until(t, "no kernel runs", func() bool { return f.dev.Running() == 0 }) // one that runs goes on, however long it stands still
	f.dev.Hang()
	first := make(chan error, 1)
	go func() { first <- f.Engine.Do(1, []engine.Command{f.RW(nvme.IORead, 0, mine, 0, 4096)}) }()
	until(t, "it is late", f.Engine.Late)
	f.Engine.BreakLane(0)
	f.dev.Resume()
	require.NoError(t, <-first)
	until(t, "it is in time", func() bool {
		if f.Engine.Late() {
			f.transfer(t, c, 512, 256<<10, 7) // by the CPU: somebody wants to know
		}
		return !f.Engine.Late()
	})
}

// A GPU that never answers again, or is lost, does not take the lanes on the CPU along.
func TestFailoverWithCPULanes(t *testing.T) {
	for name, fail := range failures {
		t.Run(name, func(t *testing.T) {
			f := newBoth(t, true, 0, softctl.Options{Queues: 12}, 2, 2)
			c := f.Chunk(t, 512<<10)
			f.transfer(t, c, 0, 4096, 1)
			fail(f.dev)
			for start := time.Now(); f.Controller.Failover() == nil && time.Since(start) < time.Minute; {
				f.transfer(t, c, 8, 8192, 2)
				f.transfer(t, c, 512, 256<<10, 3)
			}
			require.NotNil(t, f.Controller.Failover())
			for lane := range f.Engine.Lanes() {
				require.NoError(t, f.Engine.Do(lane, []engine.Command{f.RW(nvme.IORead, 8, c, 0, 8192)}), "lane %d", lane)
			}
			chosen := f.Engine.Chosen()
			f.transfer(t, c, 0, 4096, 4)
			f.transfer(t, c, 512, 256<<10, 5)
			require.Equal(t, chosen, f.Engine.Chosen(), "there is no GPU to choose")
		})
	}
}

// A reset of the controller takes lanes of both kinds with it, and brings both back.
func TestResetWithCPULanes(t *testing.T) {
	f := newBoth(t, false, time.Minute, softctl.Options{Queues: 8}, 2, 2)
	c := f.Chunk(t, 8192)
	f.transfer(t, c, 0, 4096, 1)
	f.Controller.Recover(f.Controller.Generation(), errors.New("as a test wants it"))
	for lane := range f.Engine.Lanes() {
		require.NoError(t, f.Engine.Do(lane, []engine.Command{f.RW(nvme.IORead, 0, c, 0, 4096)}), "lane %d", lane)
	}
}

// Of a controller with few queue pairs each kind gets some, and the GPU one at least.
func TestFewQueuePairs(t *testing.T) {
	for _, n := range []struct{ queues, gpu, cpu int }{{8, 4, 2}, {4, 2, 2}, {2, 1, 1}, {1, 1, 0}} {
		f := newBoth(t, false, time.Minute, softctl.Options{Queues: n.queues}, 4, 2)
		require.Equal(t, n.cpu, f.Engine.CPULanes())
		require.Equal(t, n.gpu+n.cpu, f.Engine.Lanes())
		f.transfer(t, f.Chunk(t, 8192), 0, 4096, 1)
	}
}

// placed is memory that says where it is.
type placed struct {
	gpu.Memory
	reach gpu.Reach
}

func (m placed) Reach() gpu.Reach { return m.reach }

// A range that is off the blocks has short commands at its ends, whose data goes to the daemon's memory: the long one among them says who carries out the
// batch, wherever it stands.
func TestEdgesGoAlong(t *testing.T) {
	const long, edge = 256 << 10, 4096
	of := func(n engine.Chosen) []uint64 { return []uint64{n.GPU, n.Host, n.Software, n.Late, n.Small} }
	f := newFailing(t, false, false, softctl.Options{Queues: 8}, engine.Config{Lanes: 2, CPULanes: 1, CPU: openHost(t), HangTimeout: time.Minute, LateAfter: time.Minute})
	own := f.Chunk(t, long)
	var want engine.Chosen
	for name, c := range map[string]struct {
		reach gpu.Reach
		count *uint64
	}{
		"a GPU's":                 {gpu.Reach{Owner: gpu.OwnerDevice, Device: "0000:01:00.0"}, &want.Software},
		"a program's host memory": {gpu.Reach{Owner: gpu.OwnerPages}, &want.Host},
	} {
		m, err := f.Runtime.Alloc(gpu.HostMapped, long)
		require.NoError(t, err)
		borrowed, err := f.Controller.Borrow(placed{m, c.reach})
		require.NoError(t, err)
		for at := range 3 {
			cmds := []engine.Command{f.RW(nvme.IORead, 0, own, 0, edge), f.RW(nvme.IORead, 8, own, edge, edge)}
			cmds = slices.Insert(cmds, at, f.RW(nvme.IORead, 16, borrowed, 0, long))
			for _, do := range []func() error{func() error { return f.Engine.Do(engine.AnyLane, cmds) }, func() error { return f.Engine.Spread(cmds) }} {
				require.NoError(t, do())
				*c.count++
				require.Equal(t, of(want), of(f.Engine.Chosen()), "the data is in %s, the long command is number %d", name, at)
			}
		}
		require.NoError(t, borrowed.Close())
		require.NoError(t, m.Close())
	}
	require.NoError(t, f.Engine.Do(engine.AnyLane, []engine.Command{f.RW(nvme.IORead, 0, own, 0, edge), f.RW(nvme.IORead, 8, own, 0, long)}))
	want.GPU++
	require.Equal(t, of(want), of(f.Engine.Chosen()), "a long one to the daemon's own memory")
	require.NoError(t, f.Engine.Do(engine.AnyLane, []engine.Command{f.RW(nvme.IORead, 0, own, 0, edge)}))
	want.Software++
	require.Equal(t, of(want), of(f.Engine.Chosen()), "a short one of a software controller, beside a GPU that is not shared")
}

// A drive's commands go to the GPU's lanes while these answer, however short they are.
func TestShortOfADrive(t *testing.T) {
	rt := openHost(t)
	f := newFailingOn(t, false, false, softctl.Options{Queues: 8}, engine.Config{Lanes: 2, CPULanes: 1, CPU: rt, HangTimeout: time.Minute, LateAfter: time.Minute},
		func(t controller.Transport) controller.Transport { return onItsOwn{t, t.(*reach).Controller} })
	require.False(t, f.Controller.Simulated())
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-end:
				return
			case <-time.After(100 * time.Microsecond):
				for qid := range uint16(8) {
					f.Soft.Step(qid + 1)
				}
			}
		}
	}()
	t.Cleanup(func() { close(end); <-ended })
	f.transfer(t, f.Chunk(t, 8192), 0, 4096, 1)
	chosen := f.Engine.Chosen()
	require.NotZero(t, chosen.GPU)
	require.Zero(t, chosen.Software+chosen.Late+chosen.Small+chosen.Host)
}

// Whether lanes that are launched for each batch are late nobody sees.
func TestNoCPULanesForBatches(t *testing.T) {
	rt, err := host.Open(host.Options{})
	require.NoError(t, err)
	f := newFailing(t, false, false, softctl.Options{Queues: 8}, engine.Config{Lanes: 2, CPULanes: 2, CPU: rt, Batch: true})
	require.Zero(t, f.Engine.CPULanes())
	require.Equal(t, 1, f.Log.Count("no heartbeat"), f.Log.String())
	f.transfer(t, f.Chunk(t, 8192), 0, 4096, 1)
	require.NoError(t, rt.Close())
}

// unloadable is a runtime that takes no kernels.
type unloadable struct{ gpu.Runtime }

func (unloadable) Load([]byte) (gpu.Module, error) { return nil, errors.New("no kernels here") }

// Where lanes on the CPU cannot be made there is no engine, and nothing is left of it.
func TestCPULanesFail(t *testing.T) {
	f := newFailing(t, false, false, softctl.Options{Queues: 8}, engine.Config{Lanes: 1})
	rt := openHost(t)
	free := f.Controller.AllocQIDs(100)
	f.Controller.FreeQIDs(free)
	for want, cpu := range map[string]gpu.Runtime{"need a runtime that runs them": nil, "no kernels here": unloadable{rt}} {
		_, err := engine.New(f.Controller, engine.Config{Lanes: 2, CPULanes: 2, CPU: cpu})
		require.ErrorContains(t, err, want)
		now := f.Controller.AllocQIDs(100)
		f.Controller.FreeQIDs(now)
		require.ElementsMatch(t, free, now)
	}
	require.NoError(t, f.Engine.Do(0, []engine.Command{f.RW(nvme.IORead, 0, f.Chunk(t, 4096), 0, 4096)}))
	require.NoError(t, f.Engine.Close())
}

// onItsOwn shows no sign of a controller in software: it works on its own.
type onItsOwn struct {
	controller.Transport
	soft *softctl.Controller
}

func (d onItsOwn) Write32(off int64, v uint32) {
	d.Transport.Write32(off, v)
	d.soft.Step(0)
}
