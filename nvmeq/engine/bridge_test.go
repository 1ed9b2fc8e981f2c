package engine_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/kernels"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/internal/testrig"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// Over the bridge everything works as over the BAR, and the lanes do not touch the BAR.
func TestBridge(t *testing.T) {
	for _, depth := range []int{2, 5, 128} {
		r := newRig(t, softctl.Options{OutOfOrder: true, Seed: 5}, engine.Config{Doorbell: engine.DoorbellBridge, Depth: depth, Lanes: 2})
		route, why := r.Engine.Doorbells()
		require.Equal(t, "bridge", route.String())
		require.NoError(t, why)
		for range 20 {
			r.roundTrip(t)
		}
		r.sameCounters(t)
		require.NoError(t, r.Controller.Reset(), "doorbells begin anew with their queues")
		r.roundTrip(t)
	}
}

// barless is a runtime that does not take a BAR.
type barless struct{ gpu.Runtime }

func (b barless) Register(m []byte, as gpu.Registered) (gpu.Memory, error) {
	if as == gpu.RegisteredMMIO {
		return nil, errors.New("I/O memory is not supported here")
	}
	return b.Runtime.Register(m, as)
}

func TestDoorbellRoutes(t *testing.T) {
	b, cfg, _ := testrig.Intercept(t, softctl.Options{})
	cfg.Runtime, cfg.Transport = barless{cfg.Runtime}, b
	c, err := controller.Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	_, err = engine.New(c, engine.Config{Doorbell: engine.DoorbellBAR, Lanes: 1})
	require.ErrorContains(t, err, "I/O memory is not supported here")
	e, err := engine.New(c, engine.Config{Lanes: 1})
	require.NoError(t, err)
	route, why := e.Doorbells()
	require.Equal(t, engine.DoorbellBridge, route)
	require.ErrorContains(t, why, "I/O memory is not supported here")
	require.NoError(t, e.Do(0, []engine.Command{{Op: nvme.IOFlush, NSID: 1}}))
}

// ringing is a runtime whose lane kernel rings once more before the lane is reset.
type ringing struct {
	gpu.Runtime
	words gpu.Memory
	late  bool
}

func (r *ringing) Alloc(kind gpu.MemKind, n int64) (gpu.Memory, error) {
	m, err := r.Runtime.Alloc(kind, n)
	if kind == gpu.HostCoherent { // TestLateBell's place for the words
		r.words = m
	}
	return m, err
}

func (r *ringing) NewStream() (gpu.Stream, error) {
	s, err := r.Runtime.NewStream()
	return &ringingStream{s, r}, err
}

type ringingStream struct {
	gpu.Stream
	r *ringing
}

func (s *ringingStream) Launch(f gpu.Function, grid, block gpu.Dim3, args ...uint64) error {
	if s.r.late && f.Name() == kernels.ResetKernel {
		s.r.late = false
		s.r.words.Host()[0] = 9
	}
	return s.Stream.Launch(f, grid, block, args...)
}

// TestLateBell: what a kernel rang for the queue that was is not passed on to the one that is created in its place.
func TestLateBell(t *testing.T) {
	_, cfg, _ := testrig.Intercept(t, softctl.Options{})
	rt := &ringing{Runtime: cfg.Runtime}
	cfg.Runtime, cfg.Timeout = rt, 0
	cfg.Placement = controller.Placement{Doorbell: gpu.HostCoherent}
	c, err := controller.Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	_, err = engine.New(c, engine.Config{Lanes: 1, Doorbell: engine.DoorbellBridge, Team: testrig.Team(t)})
	require.NoError(t, err)
	rt.late = true
	require.NoError(t, c.Reset())
	require.False(t, rt.late)
	require.Zero(t, rt.words.Host()[0])
}
