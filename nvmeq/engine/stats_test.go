package engine_test

import (
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/gputest/detached"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// endless is a device whose kernels seem not to end once on is set.
type endless struct {
	*detached.Runtime
	on atomic.Bool
}

func (e *endless) NewStream() (gpu.Stream, error) {
	s, err := e.Runtime.NewStream()
	return endlessStream{s, e}, err
}

type endlessStream struct {
	gpu.Stream
	e *endless
}

func (s endlessStream) Done() (bool, error) {
	if s.e.on.Load() {
		return false, nil
	}
	return s.Stream.Done()
}

// TestStatsBesideHang: whoever asks for the counters holds up a failover only as long as a kernel that works may run, whatever the number of
// lanes.
func TestStatsBesideHang(t *testing.T) {
	dev := openDetached(t)
	rt := &endless{Runtime: dev}
	soft := openServed(t, dev, softctl.Options{})
	c, err := controller.Open(controller.Config{Runtime: rt, Transport: soft, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	e, err := engine.New(c, engine.Config{Lanes: 8})
	require.NoError(t, err)
	rt.on.Store(true)
	start := time.Now()
	require.Len(t, e.Stats(), 8)
	took := time.Since(start)
	rt.on.Store(false)
	require.Greater(t, took, 250*time.Millisecond, "as long as a kernel may run")
	require.Less(t, took, 8*time.Second, "one lane's time to reset is longer than that")
}
