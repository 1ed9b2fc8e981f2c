package engine_test

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/gputest/detached"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/internal/testrig"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// TestStoppedProcess: a process that was stopped for long, while a lane was to answer, does not take the lane for one that hangs when it goes on; one that does not answer then is one.
func TestStoppedProcess(t *testing.T) {
	f := newFailing(t, true, false, softctl.Options{}, engine.Config{Lanes: 1, Timeout: 3 * time.Second, HangTimeout: time.Second})
	c := f.Chunk(t, 8192)
	f.transfer(t, c, 0, 4096, 1)
	until(t, "no kernel runs", func() bool { return f.dev.Running() == 0 })
	const stopped, step = time.Hour, 250 * time.Millisecond
	looks := []time.Duration{0, step}
	for at := stopped; at < stopped+10*time.Second; at += step {
		looks = append(looks, at)
	}
	byResults, byHeartbeat := f.Engine.HangsAt(0, looks...)
	require.Equal(t, stopped+3*time.Second, byResults, "a step and a quarter of 4 s had been spent")
	require.Equal(t, stopped+3*step, byHeartbeat, "a step and a quarter of 1 s had been spent")
	f.transfer(t, c, 0, 4096, 2)
	require.Nil(t, f.Controller.Failover())
}

// stopping is a controller in software whose process is stopped, threads and all, after each admin command: until the next step of a queue pair has taken so long, and done nothing.
type stopping struct {
	*testrig.Intercepted
	stop time.Duration
	next atomic.Bool
}

func (s *stopping) Write32(off int64, v uint32) {
	if off == nvme.CAP(s.Read64(nvme.RegCAP)).Stride().SQ(0) {
		s.next.Store(true)
	}
	s.Intercepted.Write32(off, v)
}

func (s *stopping) Step(sqid uint16) bool {
	if sqid != 0 && s.next.Swap(false) {
		time.Sleep(s.stop)
		return false
	}
	return s.Intercepted.Step(sqid)
}

func (s *stopping) StepHere(sqid uint16) bool { return s.Step(sqid) }

// refuseAborts has the controller refuse to abort commands.
func refuseAborts(rules *softctl.Rules) {
	abort := uint8(nvme.AdminAbort)
	rules.Add(softctl.Rule{Admin: true, Opcode: &abort, Do: softctl.Verdict{Status: softctl.Status(nvme.StatusInternal)}})
}

// TestStoppedAfterAbort: nor does it rebuild a queue pair whose late command the controller ends as soon as it goes on.
func TestStoppedAfterAbort(t *testing.T) {
	ec := fast
	ec.Retries, ec.AbortWait = -1, 200*time.Millisecond
	b, cfg, rules := testrig.Intercept(t, softctl.Options{Latency: 2 * ec.Timeout})
	refuseAborts(rules)
	log := &testrig.LogBuffer{}
	cfg.Transport, cfg.Timeout, cfg.Log = &stopping{Intercepted: b, stop: 2 * ec.AbortWait}, 0, slog.New(slog.NewTextHandler(log, nil))
	c, err := controller.Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	e, err := engine.New(c, ec)
	require.NoError(t, err)
	r := &rig{Rig: &testrig.Rig{Runtime: cfg.Runtime, Controller: c, Engine: e, Soft: b.Controller, Log: log, Block: 512}}
	err = e.Do(0, []engine.Command{r.RW(nvme.IORead, 5, r.Chunk(t, 4096), 0, 4096)})
	require.ErrorIs(t, err, controller.ErrTimeout)
	require.Equal(t, [4]int{1, 0, 0, 0}, r.rungs(), log.String())
}

// TestLateOnDevice: nor is a queue pair rebuilt whose command ends late, when no kernel runs on the device any more.
func TestLateOnDevice(t *testing.T) {
	for _, batch := range []bool{false, true} {
		t.Run(fmt.Sprintf("batch=%t", batch), func(t *testing.T) {
			f := newFailing(t, false, false, softctl.Options{Latency: 200 * time.Millisecond}, engine.Config{Lanes: 1, Batch: batch, Timeout: 50 * time.Millisecond, AbortWait: 20 * time.Second, Retries: -1})
			refuseAborts(f.Rules)
			err := f.Engine.Do(0, []engine.Command{f.RW(nvme.IORead, 5, f.Chunk(t, 4096), 0, 4096)})
			require.ErrorIs(t, err, controller.ErrTimeout)
			require.Equal(t, [4]int{1, 0, 0, 0}, f.rungs(), f.Log.String())
		})
	}
}

// stoppingStreams is a device of whose streams one that is asked whether it is done stands still once, if that is armed.
type stoppingStreams struct {
	*detached.Runtime
	stop atomic.Int64 // time.Duration
}

func (r *stoppingStreams) NewStream() (gpu.Stream, error) {
	s, err := r.Runtime.NewStream()
	return &stoppingStream{s, r}, err
}

type stoppingStream struct {
	gpu.Stream
	r *stoppingStreams
}

func (s *stoppingStream) Done() (bool, error) {
	if d := s.r.stop.Swap(0); d > 0 {
		time.Sleep(time.Duration(d))
		return false, nil
	}
	return s.Stream.Done()
}

// TestStoppedWhileHolding: nor is a lane given up that was asked to keep away before the process was stopped.
func TestStoppedWhileHolding(t *testing.T) {
	var dev *stoppingStreams
	of := func(d *detached.Runtime) gpu.Runtime {
		dev = &stoppingStreams{Runtime: d}
		return dev
	}
	f := newFailingRuntime(t, testrig.NewImage(t), of, nil, false, softctl.Options{}, engine.Config{Lanes: 1}, func(t controller.Transport) controller.Transport { return t })
	f.transfer(t, f.Chunk(t, 8192), 0, 4096, 1)
	const limit = 200 * time.Millisecond
	dev.stop.Store(int64(2 * limit))
	until(t, "a stream is asked while the lane is to keep away", func() bool { // not if the kernel has kept away before who wants that looks
		giveBack, err := f.Engine.HoldLaneWithin(0, limit)
		require.NoError(t, err)
		giveBack()
		return dev.stop.Load() == 0
	})
}
