package engine_test

import (
	"bytes"
	"cmp"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/gputest/detached"
	"github.com/lanefs/lanefs/gpu/host"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/internal/fill"
	"github.com/lanefs/lanefs/nvmeq/internal/testrig"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// reach counts what the controller reaches by DMA.
type reach struct {
	*softctl.Controller
	mu  sync.Mutex
	now map[nvme.IOVA]int64 // protected by mu: bytes
}

func (r *reach) Map(m gpu.Memory, off, n int64) (nvme.IOVA, error) {
	a, err := r.Controller.Map(m, off, n)
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.now[a] = n
	}
	return a, err
}

func (r *reach) Unmap(a nvme.IOVA) error {
	r.mu.Lock()
	delete(r.now, a)
	r.mu.Unlock()
	return r.Controller.Unmap(a)
}

// failing is a rig whose lanes run on a device that the test makes fail.
type failing struct {
	*rig
	dev *detached.Runtime
}

func newFailing(t *testing.T, spare, reads bool, so softctl.Options, ec engine.Config) *failing {
	t.Helper()
	return newFailingOn(t, spare, reads, so, ec, func(t controller.Transport) controller.Transport { return t })
}

// newFailingOn is newFailing over what the transport is made into.
func newFailingOn(t *testing.T, spare, reads bool, so softctl.Options, ec engine.Config, over func(controller.Transport) controller.Transport) *failing {
	t.Helper()
	return newFailingImage(t, testrig.NewImage(t), spare, reads, so, ec, over)
}

// newFailingImage is newFailingOn on an image or block device.
func newFailingImage(t *testing.T, image string, spare, reads bool, so softctl.Options, ec engine.Config, over func(controller.Transport) controller.Transport) *failing {
	t.Helper()
	var open func() (gpu.Runtime, error)
	if spare {
		open = func() (gpu.Runtime, error) { return host.Open(host.Options{}) }
	}
	return newFailingSpare(t, image, open, reads, so, ec, over)
}

// newFailingSpare is newFailingImage with a spare of the test's own; nil is none.
func newFailingSpare(t *testing.T, image string, spare func() (gpu.Runtime, error), reads bool, so softctl.Options, ec engine.Config,
	over func(controller.Transport) controller.Transport) *failing {
	t.Helper()
	return newFailingRuntime(t, image, func(dev *detached.Runtime) gpu.Runtime { return dev }, spare, reads, so, ec, over)
}

// newFailingRuntime is newFailingSpare with lanes on what the test makes of the device.
func newFailingRuntime(t *testing.T, image string, of func(*detached.Runtime) gpu.Runtime, spare func() (gpu.Runtime, error), reads bool, so softctl.Options, ec engine.Config,
	over func(controller.Transport) controller.Transport) *failing {
	t.Helper()
	dev, err := detached.New(true)
	require.NoError(t, err)
	rt := of(dev)
	// The memory of a failed device is not freed, so the runtime is not closed.
	t.Cleanup(dev.Resume)
	f := &failing{rig: &rig{Rig: &testrig.Rig{Runtime: rt, Log: &testrig.LogBuffer{}, Rules: &softctl.Rules{}, Block: 512, Threads: true}}, dev: dev}
	so.Injector, so.Threads, so.Log = f.Rules, 1, slog.New(slog.DiscardHandler)
	f.Soft, err = softctl.Open(image, so)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Soft.Close()) })
	mapped := &reach{Controller: f.Soft, now: map[nvme.IOVA]int64{}}
	cfg := controller.Config{Runtime: rt, Transport: over(mapped), SpareReads: reads, Spare: spare, Log: slog.New(slog.NewTextHandler(f.Log, nil))}
	f.Controller, err = controller.Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		err := f.Controller.Close()
		assert.Empty(t, mapped.now, "whatever has failed, nothing stays mapped")
		if f.Controller.Failover() != nil && f.Engine.Close() == nil {
			assert.NoError(t, err, "nor is there anything to complain of")
		}
		if t.Failed() {
			t.Log(f.Log.String())
		}
	})
	ec.HangTimeout = cmp.Or(ec.HangTimeout, 2*time.Second)
	f.Engine, err = engine.New(f.Controller, ec)
	require.NoError(t, err)
	return f
}

// write has three writers who read what they wrote, round by round, until stop.
func (f *failing) write(t *testing.T) (rounds *atomic.Int64, stop func()) {
	t.Helper()
	const writers, each = 3, 64 << 10
	var done sync.WaitGroup
	var over atomic.Bool
	rounds = new(atomic.Int64)
	for w := range writers {
		c := f.Chunk(t, 2*each)
		done.Go(func() {
			for round := uint64(0); !over.Load(); round++ {
				fill.Fill(c.Bytes()[:each], uint64(w)<<32|round)
				cmds := make([]engine.Command, 16)
				for i, op := range []nvme.Opcode{nvme.IOWrite, nvme.IORead} {
					for n := range cmds {
						at := int64(n) * each / 16
						cmds[n] = f.RW(op, uint64(int64(w)*each+at)/512, c, int64(i)*each+at, each/16)
					}
					if err := f.Engine.Do(w, cmds); err != nil {
						t.Errorf("writer %d, round %d: %v", w, round, err)
						return
					}
				}
				if !bytes.Equal(c.Bytes()[:each], c.Bytes()[each:]) {
					t.Errorf("writer %d, round %d: read something else than was written", w, round)
					return
				}
				rounds.Add(1)
			}
		})
	}
	return rounds, func() {
		over.Store(true)
		done.Wait()
	}
}

var failures = map[string]func(*detached.Runtime){
	"hangs": (*detached.Runtime).Hang, "does not launch": (*detached.Runtime).Refuse, "is lost": (*detached.Runtime).Lose,
}

// Whatever happens to the device, the lanes go on on the CPU; callers do not notice, and nothing is lost or done to the wrong
// place. A kernel that wakes up later changes nothing.
func TestFailover(t *testing.T) {
	for name, fail := range failures {
		t.Run(name, func(t *testing.T) {
			f := newFailing(t, true, false, softctl.Options{}, engine.Config{Lanes: 2})
			rounds, stop := f.write(t)
			until(t, "some rounds", func() bool { return rounds.Load() > 20 })
			require.Nil(t, f.Controller.Failover())
			fail(f.dev)
			until(t, "the lanes move", func() bool { return f.Controller.Failover() != nil })
			after := rounds.Load()
			until(t, "more rounds", func() bool { return rounds.Load() > after+20 })
			f.dev.Resume()
			after = rounds.Load()
			until(t, "rounds with the old kernels awake", func() bool { return rounds.Load() > after+20 })
			stop()
			move := f.Controller.Failover()
			require.Equal(t, "detached", move.From)
			require.Equal(t, "host", move.To)
			require.False(t, move.ReadOnly)
			require.Regexp(t, "kernel|launch|lost", move.Why)
			require.Equal(t, 1, f.Log.Count("the lanes have failed and move"), "logged once")
			require.NoError(t, f.Controller.Err())
			for _, s := range f.Engine.Stats() {
				require.Zero(t, s.Spurious+s.Errors, "lane %d", s.Lane)
			}
			c := f.Chunk(t, 4096) // data memory is the spare runtime's now
			require.NoError(t, f.Engine.Do(0, []engine.Command{f.RW(nvme.IORead, 0, c, 0, 4096)}))
			require.NoError(t, f.Engine.Close())
		})
	}
}

// losable is a device that tells when it is lost.
type losable struct {
	*detached.Runtime
	lost atomic.Pointer[error]
}

func (l *losable) Lost() error {
	if p := l.lost.Load(); p != nil {
		return *p
	}
	return nil
}

// A GPU that is lost while nobody uses it: the lanes move all the same, so that nothing of it is held.
func TestLostUnused(t *testing.T) {
	var rt *losable
	of := func(dev *detached.Runtime) gpu.Runtime {
		rt = &losable{Runtime: dev}
		return rt
	}
	spare := func() (gpu.Runtime, error) { return host.Open(host.Options{}) }
	f := newFailingRuntime(t, testrig.NewImage(t), of, spare, false, softctl.Options{}, engine.Config{Lanes: 2}, func(t controller.Transport) controller.Transport { return t })
	rounds, stop := f.write(t)
	until(t, "some rounds", func() bool { return rounds.Load() > 20 })
	stop()
	err := errors.New("another program's kernel has faulted")
	f.dev.Lose()
	rt.lost.Store(&err)
	until(t, "the lanes move", func() bool { return f.Controller.Failover() != nil })
	require.Equal(t, err.Error(), f.Controller.Failover().Why)
	rounds, stop = f.write(t)
	until(t, "more rounds", func() bool { return rounds.Load() > 20 })
	time.Sleep(1100 * time.Millisecond) // another look
	stop()
	require.Equal(t, 1, f.Log.Count("the lanes have failed and move"), "once")
	require.NoError(t, f.Controller.Err())
}

// until polls for a minute.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if t.Failed() || time.Now().After(end) {
			t.Fatalf("%s: has not happened within a minute", what)
		}
	}
}

// hangs has the device hang while the controller, which takes 700 ms, has the command of do, whose error it returns. A command that has ended before that, since the
// process stood still for so long, is carried out again.
func (f *failing) hangs(t *testing.T, do func() error) error {
	t.Helper()
	for {
		before, ended := f.dev.Launches(), make(chan error, 1)
		go func() { ended <- do() }()
		until(t, "the command is with the controller", func() bool { return f.dev.Launches() > before || len(ended) > 0 })
		f.dev.Hang() // the kernel leaves after a quarter of a second, and does not come back
		if err := <-ended; err != nil || f.Controller.Failover() != nil {
			return err
		}
		f.dev.Resume()
	}
}

// Commands that the controller had when the device failed have ended before their memory is used again: the controller
// was disabled, and what it was to write does not appear later.
func TestFailoverInFlight(t *testing.T) {
	f := newFailing(t, true, false, softctl.Options{Latency: 700 * time.Millisecond}, engine.Config{Lanes: 1})
	c := f.Chunk(t, 8192)
	fill.Fill(c.Bytes(), 1)
	want := bytes.Clone(c.Bytes())
	require.NoError(t, f.hangs(t, func() error { return f.Engine.Do(0, []engine.Command{f.RW(nvme.IOWrite, 0, c, 0, 4096)}) }))
	require.NotNil(t, f.Controller.Failover())
	require.NoError(t, f.Engine.Do(0, []engine.Command{f.RW(nvme.IORead, 0, c, 4096, 4096)}))
	require.True(t, bytes.Equal(want[:4096], c.Bytes()[4096:]))
	require.NoError(t, f.Engine.Close())
}

// With SpareReads what is on the medium stays readable, and nothing is written.
func TestFailoverReadOnly(t *testing.T) {
	f := newFailing(t, true, true, softctl.Options{}, engine.Config{Lanes: 1})
	c := f.Chunk(t, 8192)
	fill.Fill(c.Bytes(), 1)
	write := []engine.Command{f.RW(nvme.IOWrite, 0, c, 0, 4096)}
	require.NoError(t, f.Engine.Do(0, write))
	f.dev.Hang()
	fill.Fill(c.Bytes(), 2)
	var err error
	until(t, "writes fail", func() bool { err = f.Engine.Do(0, write); return err != nil })
	require.ErrorIs(t, err, engine.ErrReadOnly)
	require.ErrorContains(t, err, "since the lanes failed on detached: ")
	require.True(t, f.Controller.Failover().ReadOnly)
	require.ErrorIs(t, f.Engine.Do(0, write), engine.ErrReadOnly)
	require.ErrorIs(t, f.Engine.Do(0, []engine.Command{{Op: nvme.IOWriteZeroes, NSID: 1, NLB: 1}}), engine.ErrReadOnly)
	require.NoError(t, f.Engine.Do(0, []engine.Command{f.RW(nvme.IORead, 0, c, 4096, 4096)}))
	require.NoError(t, f.Engine.Do(0, []engine.Command{{Op: nvme.IOFlush, NSID: 1}}))
	compare := f.RW(nvme.IOCompare, 0, c, 4096, 4096)
	for _, cmd := range []engine.Command{compare, {Op: nvme.IOVerify, NSID: 1, NLB: 1}} { // which the controller may not have
		require.NotErrorIs(t, f.Engine.Do(0, []engine.Command{cmd}), engine.ErrReadOnly)
	}
	require.NoError(t, f.Engine.Close())
}

// Whatever is under way when the lanes fail is carried out on the spare; with SpareReads what writes is refused, and not done: what a kernel had, and what nobody
// had sent yet. That no command uses up its tries by it, nor anything of its lane.
func TestFailoverUnderWay(t *testing.T) {
	for _, reads := range []bool{false, true} {
		f := newFailing(t, true, reads, softctl.Options{}, engine.Config{Lanes: 1, Depth: 4, Retries: -1, HangTimeout: time.Second})
		const each = 4096
		cmds := make([]engine.Command, 48)
		c := f.Chunk(t, int64(len(cmds))*each)
		fill.Fill(c.Bytes(), 1)
		for i := range cmds {
			require.NoError(t, f.Engine.Do(0, []engine.Command{f.RW(nvme.IOWrite, uint64(i)*each/512, c, int64(i)*each, each)}))
		}
		before := bytes.Clone(c.Bytes())
		// One may be about to begin, though nothing is left to do: who drives the lane launches it for a command whose result it has not seen yet. Hang would
		// keep it.
		until(t, "no kernel runs", func() bool { return f.dev.Running() == 0 })
		require.Nil(t, f.Controller.Failover())
		f.dev.Hang()
		fill.Fill(c.Bytes(), 2)
		after := bytes.Clone(c.Bytes())
		isRead := func(i int) bool { return i%3 == 0 }
		for i := range cmds {
			switch i % 3 {
			case 0:
				cmds[i] = f.RW(nvme.IORead, uint64(i)*each/512, c, int64(i)*each, each)
			case 1:
				cmds[i] = f.RW(nvme.IOWrite, uint64(i)*each/512, c, int64(i)*each, each)
			default: // not of what is looked at
				cmds[i] = engine.Command{Op: nvme.IODSM, NSID: 1, Ranges: []nvme.Range{{SLBA: uint64(len(cmds)+i) * each / 512, NLB: each / 512}}}
			}
		}
		err := f.Engine.Do(0, cmds)
		require.NotNil(t, f.Controller.Failover())
		if !reads {
			require.NoError(t, err)
		}
		for i := range cmds {
			if reads && !isRead(i) {
				require.ErrorIs(t, cmds[i].Err, engine.ErrReadOnly, "command %d", i)
			} else {
				require.NoError(t, cmds[i].Err, "command %d", i)
			}
		}
		tags, pages := f.Engine.InUse(0)
		require.Zero(t, tags)
		require.Zero(t, pages)
		for i := range cmds {
			at := c.Bytes()[i*each:][:each]
			if isRead(i) {
				require.True(t, bytes.Equal(before[i*each:][:each], at), "block %d was read before", i)
			}
			require.NoError(t, f.Engine.Do(0, []engine.Command{f.RW(nvme.IORead, uint64(i)*each/512, c, int64(i)*each, each)}))
			want := before
			if i%3 == 1 && !reads {
				want = after
			}
			require.True(t, bytes.Equal(want[i*each:][:each], at), "block %d", i)
		}
		require.NoError(t, f.Engine.Close())
	}
}

// Answers that a kernel had given before it failed count, though nobody had read them: what is done is not done again, nor refused. What was to be tried again is
// tried on the spare, or refused.
func TestFailoverUnread(t *testing.T) {
	for _, reads := range []bool{false, true} {
		f := newFailing(t, true, reads, softctl.Options{}, engine.Config{Lanes: 1})
		c := f.Chunk(t, 16<<10)
		fill.Fill(c.Bytes(), 1)
		for i, op := range []nvme.Opcode{nvme.IOWrite, nvme.IORead} {
			code := uint8(op)
			f.Rules.Add(softctl.Rule{Opcode: &code, Range: &[2]uint64{uint64(8 + 8*i), 8}, Times: 1, Do: softctl.Verdict{Status: softctl.Status(nvme.StatusNSNotReady)}})
		}
		cmds := []engine.Command{f.RW(nvme.IOWrite, 0, c, 0, 4096), f.RW(nvme.IOWrite, 8, c, 4096, 4096), f.RW(nvme.IORead, 16, c, 8192, 4096)}
		err := f.Engine.FailUnread(cmds, f.dev.Refuse)
		require.NotNil(t, f.Controller.Failover())
		require.Equal(t, 2, f.Rules.Fired())
		require.NoError(t, cmds[0].Err, "the controller has done it")
		require.NoError(t, cmds[2].Err, "tried again")
		if reads {
			require.ErrorIs(t, err, engine.ErrReadOnly)
			require.ErrorIs(t, cmds[1].Err, engine.ErrReadOnly, "it was to be tried again")
		} else {
			require.NoError(t, err)
		}
		all, _ := submitted(f.Engine)
		require.EqualValues(t, map[bool]int{false: 5, true: 4}[reads], all, "three before, and what is tried again")
		require.NoError(t, f.Engine.Close())
	}
}

// TestFailoverImpossible: without another runtime, or with too few queue pairs, every command fails with the reason, and none waits
// for ever.
func TestFailoverImpossible(t *testing.T) {
	for name, c := range map[string]struct {
		spare  bool
		queues int
		want   string
	}{
		"no spare":       {false, 16, "no other runtime can run the lanes"},
		"no queue pairs": {true, 2, "0 queue pairs are free and 2 are needed"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFailing(t, c.spare, false, softctl.Options{Queues: c.queues}, engine.Config{Lanes: 2})
			data := f.Chunk(t, 4096)
			read := []engine.Command{f.RW(nvme.IORead, 0, data, 0, 4096)}
			require.NoError(t, f.Engine.Do(0, read))
			f.dev.Hang()
			var err error
			until(t, "reads fail", func() bool { err = f.Engine.Do(0, read); return err != nil })
			require.ErrorContains(t, err, "out of service")
			require.ErrorContains(t, err, c.want)
			require.Zero(t, f.Log.Count("the lane does not answer"), "a kernel that has failed is not asked, nor waited for, again")
		})
	}
}

// A kernel that hangs may ring its doorbells later, so the lanes of all GPUs get other queue pairs. Those of kernels that have ended serve again, as do the
// CPU's, whose kernels end by themselves: there need not be more.
func TestFailoverQueuePairs(t *testing.T) {
	const lanes, cpuLanes = 2, 1
	for name, fail := range failures {
		t.Run(name, func(t *testing.T) {
			hangs := name == "hangs"
			queues := 2*lanes + cpuLanes
			if hangs {
				queues += 2 * lanes
			}
			cpu := openHost(t)
			peer, err := detached.New(true)
			require.NoError(t, err)
			t.Cleanup(peer.Resume)
			had := &faults{}
			peerRuntime := &faulty{Runtime: peer, faults: had, name: "the further GPU"}
			f := newFailing(t, true, false, softctl.Options{Queues: queues},
				engine.Config{Lanes: lanes, CPULanes: cpuLanes, CPU: cpu, More: []gpu.Runtime{peerRuntime}, HangTimeout: time.Second})
			c := f.Chunk(t, 4096)
			read := []engine.Command{f.RW(nvme.IORead, 0, c, 0, 4096)}
			qids := func() (gpus, cpus []uint16) {
				for i, s := range f.Engine.Stats() {
					require.NoError(t, f.Engine.Do(i, read), "lane %d", i)
					if s.CPU {
						cpus = append(cpus, s.QID)
					} else {
						gpus = append(gpus, s.QID)
					}
				}
				return gpus, cpus
			}
			gpus, cpus := qids()
			require.Len(t, gpus, 2*lanes)
			require.Len(t, cpus, cpuLanes)
			open := had.open
			require.NotZero(t, open)
			fail(f.dev)
			fail(peer)
			until(t, "the lanes move", func() bool {
				require.NoError(t, f.Engine.Do(0, read))
				return f.Controller.Failover() != nil
			})
			gpusNow, cpusNow := qids()
			require.Equal(t, cpus, cpusNow)
			require.Equal(t, open, had.open, "nothing of a GPU that has failed is closed: that may wait for ever, and a kernel may use it")
			if !hangs {
				require.Equal(t, gpus, gpusNow)
				return
			}
			for _, qid := range gpusNow {
				require.NotContains(t, gpus, qid)
			}
		})
	}
}

// stubborn is a controller that cannot be disabled, nor reset.
type stubborn struct {
	*reach
	is atomic.Bool
}

func (s *stubborn) Read32(off int64) uint32 {
	v := s.reach.Read32(off)
	if off == nvme.RegCSTS && s.is.Load() {
		v |= 1 // CSTS.RDY
	}
	return v
}

func (s *stubborn) Reset() error {
	if s.is.Load() {
		return errors.New("no reset")
	}
	return s.reach.Reset()
}

// A controller that does not stop may still access the memory of its commands: there is no failover.
func TestFailoverNotStopped(t *testing.T) {
	var s *stubborn
	opened := false
	spare := func() (gpu.Runtime, error) { opened = true; return host.Open(host.Options{}) }
	f := newFailingSpare(t, testrig.NewImage(t), spare, false, softctl.Options{}, engine.Config{Lanes: 2}, func(t controller.Transport) controller.Transport {
		s = &stubborn{reach: t.(*reach)}
		return s
	})
	c := f.Chunk(t, 4096)
	read := []engine.Command{f.RW(nvme.IORead, 0, c, 0, 4096)}
	require.NoError(t, f.Engine.Do(0, read))
	s.is.Store(true)
	f.dev.Refuse()
	var err error
	until(t, "reads fail", func() bool { err = f.Engine.Do(0, read); return err != nil })
	require.ErrorContains(t, err, "out of service")
	require.ErrorContains(t, err, "out of resources; stopping the controller: disabling timed out")
	require.ErrorContains(t, err, "no reset")
	require.False(t, opened)
	require.Nil(t, f.Controller.Failover())
	s.is.Store(false)
}

// A mount never holds more of the device than its lanes, each of which is launched again only when there is work.
func TestResidentLanesPark(t *testing.T) {
	f := newFailing(t, false, false, softctl.Options{}, engine.Config{Lanes: 3})
	c := f.Chunk(t, 1<<20)
	cmds := make([]engine.Command, 24)
	for i := range cmds {
		cmds[i] = f.RW(nvme.IORead, uint64(i), c, int64(i)*512, 512)
	}
	for range 5 {
		require.NoError(t, f.Engine.Spread(cmds))
		until(t, "all lanes park", func() bool { return f.dev.Running() == 0 })
		idle := f.dev.Launches()
		time.Sleep(20 * time.Millisecond)
		require.Equal(t, idle, f.dev.Launches(), "an idle engine launches nothing")
	}
	require.LessOrEqual(t, f.dev.Most(), int64(3))
	require.NoError(t, f.Engine.Close())
}

// Data in the memory of the GPU that failed cannot be gone on with, though the CPU has a view of it: by a large BAR, which ends with the
// GPU. So it is with another drive's data (controller.Share), as in an array.
func TestFailoverDataOnGPU(t *testing.T) {
	for _, shared := range []bool{false, true} {
		dev, err := detached.New(true)
		require.NoError(t, err)
		t.Cleanup(dev.Resume)
		place, err := controller.ModeData.Placement()
		require.NoError(t, err)
		open := func() *controller.Controller {
			soft, err := softctl.Open(testrig.NewImage(t), softctl.Options{Threads: 1, Log: slog.New(slog.DiscardHandler)})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, soft.Close()) })
			c, err := controller.Open(controller.Config{Runtime: dev, Transport: soft, Placement: place, Log: slog.New(slog.DiscardHandler),
				Spare: func() (gpu.Runtime, error) { return host.Open(host.Options{}) }})
			require.NoError(t, err)
			t.Cleanup(func() { c.Close() })
			return c
		}
		c := open()
		e, err := engine.New(c, engine.Config{Lanes: 1, HangTimeout: time.Second})
		require.NoError(t, err)
		r := &rig{Rig: &testrig.Rig{Runtime: dev, Controller: c, Engine: e, Block: 512}}
		var data *controller.Chunk
		if shared {
			of, err := open().AllocData(4096)
			require.NoError(t, err)
			t.Cleanup(func() { of.Close() })
			data, err = c.Share(of)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, data.Close()) })
		} else {
			data = r.Chunk(t, 4096)
		}
		require.NotNil(t, data.Bytes())
		read := []engine.Command{r.RW(nvme.IORead, 0, data, 0, 4096)}
		require.NoError(t, e.Do(0, read))
		dev.Refuse()
		until(t, "reads fail", func() bool { err = e.Do(0, read); return err != nil })
		require.ErrorContains(t, err, "data is in the memory of the GPU that failed")
		require.Nil(t, c.Failover())
	}
}
