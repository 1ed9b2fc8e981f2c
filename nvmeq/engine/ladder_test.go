package engine_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/internal/fill"
	"github.com/lanefs/lanefs/nvmeq/internal/testrig"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// Lines of the log, one for each rung.
const (
	logAbort   = "command timed out, aborting it"
	logRebuild = "rebuilding the queue pair"
	logReset   = "resetting the controller"
	logFailed  = "controller given up"
)

func (r *rig) rungs() [4]int {
	return [4]int{r.Log.Count(logAbort), r.Log.Count(logRebuild), r.Log.Count(logReset), r.Log.Count(logFailed)}
}

var fast = engine.Config{Lanes: 2, Depth: 8, Timeout: 50 * time.Millisecond, AbortWait: 50 * time.Millisecond}

// works checks that data written now comes back, on every lane.
func (r *rig) works(t *testing.T) {
	t.Helper()
	w, rd := r.Chunk(t, 4096), r.Chunk(t, 4096)
	for lane := range r.Engine.Lanes() {
		fill.Fill(w.Bytes(), uint64(lane)+99)
		require.NoError(t, r.Engine.Do(lane, []engine.Command{r.RW(nvme.IOWrite, 3000, w, 0, 4096)}))
		require.NoError(t, r.Engine.Do(lane, []engine.Command{r.RW(nvme.IORead, 3000, rd, 0, 4096)}))
		require.True(t, bytes.Equal(w.Bytes(), rd.Bytes()))
	}
}

func TestRetry(t *testing.T) {
	again := softctl.Status(nvme.StatusInterrupted)
	for _, tc := range []struct {
		name   string
		status nvme.Status
		times  int
		sent   uint64
		fails  bool
	}{
		{"twice interrupted", nvme.StatusInterrupted, 2, 3, false},
		{"for ever", nvme.StatusInterrupted, 0, 4, true},
		{"do not retry", nvme.NewStatus(nvme.SCTGeneric, 0x21, true), 1, 1, true},
		{"a wrong command", nvme.StatusInvalidField, 1, 1, true},
		{"write fault", nvme.StatusWriteFault, 1, 2, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, softctl.Options{}, engine.Config{Lanes: 1})
			again = softctl.Status(tc.status)
			r.Rules.Add(softctl.Rule{Times: tc.times, Do: softctl.Verdict{Status: again}})
			c := r.Chunk(t, 4096)
			err := r.Engine.Do(0, []engine.Command{r.RW(nvme.IOWrite, 5, c, 0, 4096)})
			require.Equal(t, tc.fails, err != nil, "%v", err)
			if tc.fails {
				var s *nvme.StatusError
				require.True(t, errors.As(err, &s))
				require.True(t, s.Status.Is(tc.status))
			}
			require.Equal(t, tc.sent, r.Engine.Stats()[0].Commands)
			r.sameCounters(t)
			require.Zero(t, r.rungs())
		})
	}
}

// TestRetryDelay: a status that names a delay is not tried again before it is over (Base §3.3.3.2.1, CRD).
func TestRetryDelay(t *testing.T) {
	b, cfg, rules := testrig.Intercept(t, softctl.Options{})
	cfg.Timeout = 0
	b.OnAdminData = func(d []byte) {
		if d[512] == 0x66 && d[513] == 0x44 { // Identify Controller: SQES, CQES
			binary.LittleEndian.PutUint16(d[130:], 3) // CRDT2
		}
	}
	c, err := controller.Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	e, err := engine.New(c, engine.Config{Lanes: 1, Team: testrig.Team(t)})
	require.NoError(t, err)
	r := &rig{Rig: &testrig.Rig{Runtime: cfg.Runtime, Controller: c, Engine: e, Soft: b.Controller, Block: 512}}
	data := r.Chunk(t, 4096)
	rules.Add(softctl.Rule{Times: 1, Do: softctl.Verdict{Status: softctl.Status(nvme.StatusInterrupted) | 2<<11}})
	start := time.Now()
	require.NoError(t, e.Do(0, []engine.Command{r.RW(nvme.IORead, 5, data, 0, 4096)}))
	require.GreaterOrEqual(t, time.Since(start), 300*time.Millisecond)
	require.EqualValues(t, 2, e.Stats()[0].Commands)
}

// TestAbort: the command is slow, the Abort ends it, the queue pair stays.
func TestAbort(t *testing.T) {
	ec := fast
	ec.Retries, ec.AbortWait = -1, time.Minute
	r := newRig(t, softctl.Options{Latency: time.Hour}, ec)
	c := r.Chunk(t, 4096)
	err := r.Engine.Do(0, []engine.Command{r.RW(nvme.IORead, 5, c, 0, 4096)})
	require.ErrorIs(t, err, controller.ErrTimeout)
	require.ErrorContains(t, err, "nvme: Read of 8 blocks at LBA 5 of namespace 1: timed out after 50ms, 1 times")
	require.Equal(t, [4]int{1, 0, 0, 0}, r.rungs())
	s := r.Engine.Stats()[0]
	require.EqualValues(t, 1, s.Timeouts)
	require.EqualValues(t, 1, s.Late)
}

// TestRebuild: a completion never comes; the queue pair is rebuilt and the command sent again. Neighbours on the same
// queue pair lose nothing.
func TestRebuild(t *testing.T) {
	for name, ec := range map[string]engine.Config{
		"step":    fast,
		"batch":   {Lanes: 2, Depth: 8, Timeout: fast.Timeout, AbortWait: fast.AbortWait, Batch: true},
		"depth 2": {Lanes: 2, Depth: 2, Timeout: fast.Timeout, AbortWait: fast.AbortWait},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, softctl.Options{}, ec)
			r.Rules.Add(softctl.Rule{Skip: 5, Times: 1, Do: softctl.Verdict{Drop: true}})
			c := r.Chunk(t, 20*4096)
			fill.Fill(c.Bytes(), 3)
			cmds := make([]engine.Command, 20)
			for i := range cmds {
				cmds[i] = r.RW(nvme.IOWrite, uint64(i*8), c, int64(i)*4096, 4096)
			}
			require.NoError(t, r.Engine.Do(0, cmds))
			rungs := [4]int{1, 1, 0, 0}
			if ec.Depth == 2 {
				rungs[0] = 0 // all that is in flight timed out: the lane gives the queue pair up by itself
			}
			require.Equal(t, rungs, r.rungs())
			want := append([]byte(nil), c.Bytes()...)
			clear(c.Bytes())
			require.NoError(t, r.Engine.Do(1, []engine.Command{r.RW(nvme.IORead, 0, c, 0, 20*4096)}))
			require.True(t, bytes.Equal(want, c.Bytes()))
			r.works(t)
		})
	}
}

// TestLost: a command that never completes, however often it is sent, fails at last, and nothing else does.
func TestLost(t *testing.T) {
	ec := fast
	ec.Retries = 1
	r := newRig(t, softctl.Options{}, ec)
	bad := [2]uint64{800, 8}
	r.Rules.Add(softctl.Rule{Range: &bad, Do: softctl.Verdict{Drop: true}})
	c := r.Chunk(t, 2*4096)
	cmds := []engine.Command{r.RW(nvme.IORead, 800, c, 0, 4096), r.RW(nvme.IORead, 0, c, 4096, 4096)}
	err := r.Engine.Do(0, cmds)
	require.ErrorIs(t, err, controller.ErrTimeout)
	require.ErrorContains(t, err, "LBA 800")
	require.NoError(t, cmds[1].Err)
	require.Equal(t, [4]int{2, 2, 0, 0}, r.rungs())
	r.works(t)
}

func TestWrongCID(t *testing.T) {
	r := newRig(t, softctl.Options{}, fast)
	r.Rules.Add(softctl.Rule{Skip: 1, Times: 1, Do: softctl.Verdict{XorCID: 0x4000}})
	c := r.Chunk(t, 4*4096)
	cmds := make([]engine.Command, 4)
	for i := range cmds {
		cmds[i] = r.RW(nvme.IORead, uint64(i*8), c, int64(i)*4096, 4096)
	}
	require.NoError(t, r.Engine.Do(0, cmds))
	require.Equal(t, [4]int{0, 1, 0, 0}, r.rungs())
	require.Contains(t, r.Log.String(), "of queue 1, which was not in flight")
	r.works(t)
}

// TestCompletedTwice: the completion of one command carries the CID of another, which has ended in the same step. The command is answered once, and
// the queue pair is rebuilt.
func TestCompletedTwice(t *testing.T) {
	r := newRig(t, softctl.Options{}, fast)
	r.Rules.Add(softctl.Rule{Skip: 1, Times: 1, Do: softctl.Verdict{XorCID: 1}}) // CIDs are 0, 1 and so on at first
	c := r.Chunk(t, 4*4096)
	cmds := make([]engine.Command, 4)
	for i := range cmds {
		cmds[i] = r.RW(nvme.IORead, uint64(i*8), c, int64(i)*4096, 4096)
	}
	require.NoError(t, r.Engine.Do(0, cmds))
	require.Equal(t, [4]int{0, 1, 0, 0}, r.rungs())
	require.Contains(t, r.Log.String(), "command 0x0 of queue 1, which was not in flight")
	require.EqualValues(t, 1, r.Engine.Stats()[0].Spurious)
	r.works(t)
}

// TestFatal: the controller stops with CSTS.CFS under load from many goroutines; all their commands succeed after the
// reset.
func TestFatal(t *testing.T) {
	r := newRig(t, softctl.Options{}, fast)
	r.Rules.Add(softctl.Rule{Skip: 50, Times: 1, Do: softctl.Verdict{Fatal: true}})
	var wg sync.WaitGroup
	for i := range 8 {
		c, back := r.Chunk(t, 4096), r.Chunk(t, 4096)
		fill.Fill(c.Bytes(), uint64(i))
		wg.Go(func() {
			for n := range 20 {
				lba := uint64(i*1000 + n*8)
				err := r.Engine.Do(engine.AnyLane, []engine.Command{r.RW(nvme.IOWrite, lba, c, 0, 4096)})
				if err == nil {
					err = r.Engine.Spread([]engine.Command{r.RW(nvme.IORead, lba, back, 0, 2048), r.RW(nvme.IORead, lba+4, back, 2048, 2048)})
				}
				if err != nil || !bytes.Equal(c.Bytes(), back.Bytes()) {
					t.Errorf("goroutine %d round %d: %v, or the bytes differ", i, n, err)
				}
			}
		})
	}
	wg.Wait()
	require.Equal(t, 1, r.Rules.Fired())
	require.Equal(t, 1, r.Log.Count(logReset))
	require.Zero(t, r.Log.Count(logFailed))
	r.works(t)
}

// TestDead: resets do not help; every command fails with the reason, at once, and Close still works.
func TestDead(t *testing.T) {
	r := newRig(t, softctl.Options{}, fast)
	r.Rules.Add(softctl.Rule{Do: softctl.Verdict{Fatal: true}})
	var wg sync.WaitGroup
	for range 4 {
		c := r.Chunk(t, 4096)
		wg.Go(func() {
			for range 3 {
				err := r.Engine.Do(engine.AnyLane, []engine.Command{r.RW(nvme.IOWrite, 0, c, 0, 4096)})
				if err == nil {
					t.Error("a command succeeded on a controller out of service")
				}
			}
		})
	}
	wg.Wait()
	require.Equal(t, [4]int{0, 0, 3, 1}, r.rungs())
	require.ErrorContains(t, r.Controller.Err(), "out of service: 3 resets did not help")
	require.ErrorContains(t, r.Engine.Do(0, []engine.Command{{Op: nvme.IOFlush, NSID: 1}}), "out of service")
	_, err := engine.New(r.Controller, engine.Config{})
	require.ErrorContains(t, err, "out of service")
}

// TestReset: a reset in the middle of traffic loses nothing.
func TestReset(t *testing.T) {
	r := newRig(t, softctl.Options{Latency: 100 * time.Microsecond, OutOfOrder: true}, engine.Config{Lanes: 2, Depth: 16})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 4 {
		c := r.Chunk(t, 16*4096)
		wg.Go(func() {
			cmds := make([]engine.Command, 16)
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				fill.Fill(c.Bytes(), uint64(i*1000+n))
				want := append([]byte(nil), c.Bytes()...)
				for j := range cmds {
					cmds[j] = r.RW(nvme.IOWrite, uint64(i*200+j*8), c, int64(j)*4096, 4096)
				}
				err := r.Engine.Do(engine.AnyLane, cmds)
				clear(c.Bytes())
				for j := range cmds {
					cmds[j].Op = nvme.IORead
				}
				if err == nil {
					err = r.Engine.Spread(cmds)
				}
				if err != nil || !bytes.Equal(want, c.Bytes()) {
					t.Errorf("goroutine %d round %d: %v, or the bytes differ", i, n, err)
					return
				}
			}
		})
	}
	var errs []error
	for range 10 {
		errs = append(errs, r.Controller.Reset())
	}
	close(stop)
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	r.works(t)
	require.Equal(t, 10, r.Log.Count(logReset))
}

func TestEngineClose(t *testing.T) {
	r := newRig(t, softctl.Options{Queues: 4}, engine.Config{Lanes: 3})
	second, err := engine.New(r.Controller, engine.Config{Lanes: 3})
	require.NoError(t, err)
	require.Equal(t, 1, second.Lanes(), "the controller has four queue pairs, three are taken")
	_, err = engine.New(r.Controller, engine.Config{})
	require.ErrorContains(t, err, "all 4 I/O queue pairs are in use")
	r.works(t)
	before := r.Engine.Stats()
	require.NoError(t, r.Engine.Close())
	require.NoError(t, r.Engine.Close())
	require.Equal(t, before, r.Engine.Stats(), "counters outlive the memory they were in")
	require.ErrorIs(t, r.Engine.Do(0, []engine.Command{{Op: nvme.IOFlush, NSID: 1}}), engine.ErrClosed)
	require.NoError(t, second.Do(0, []engine.Command{{Op: nvme.IOFlush, NSID: 1}}))
	r.Engine, err = engine.New(r.Controller, engine.Config{Lanes: 8})
	require.NoError(t, err)
	require.Equal(t, 3, r.Engine.Lanes())
	r.works(t)
	require.NoError(t, r.Controller.Close())
}
