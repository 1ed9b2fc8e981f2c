package engine_test

import (
	"log/slog"
	"sync"
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

// slowDriver is a device whose driver does not return from a launch while until is open.
type slowDriver struct {
	*detached.Runtime
	until atomic.Pointer[chan struct{}]
}

func (d *slowDriver) NewStream() (gpu.Stream, error) {
	s, err := d.Runtime.NewStream()
	return slowStream{s, d}, err
}

type slowStream struct {
	gpu.Stream
	d *slowDriver
}

func (s slowStream) Launch(f gpu.Function, grid, block gpu.Dim3, args ...uint64) error {
	if until := s.d.until.Load(); until != nil {
		<-*until
	}
	return s.Stream.Launch(f, grid, block, args...)
}

// TestDriverCallHangs: a call of the GPU's driver that does not return is logged while it lasts, and that it has ended; the request is carried out then.
func TestDriverCallHangs(t *testing.T) {
	dev := openDetached(t)
	rt := &slowDriver{Runtime: dev}
	soft := openServed(t, dev, softctl.Options{})
	log := new(testrig.LogBuffer)
	c, err := controller.Open(controller.Config{Runtime: rt, Transport: soft, Log: slog.New(slog.NewTextHandler(log, nil))})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	e, err := engine.New(c, engine.Config{Lanes: 1, HangTimeout: 200 * time.Millisecond})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return dev.Running() == 0 }, time.Minute, time.Millisecond, "an idle kernel ends")
	until := make(chan struct{})
	rt.until.Store(&until)
	release := sync.OnceFunc(func() {
		rt.until.Store(nil)
		close(until)
	})
	t.Cleanup(release)
	ended := make(chan error, 1)
	go func() { ended <- e.Do(0, []engine.Command{{Op: nvme.IOFlush, NSID: 1}}) }()
	require.Eventually(t, func() bool { return log.Count("does not return") > 0 }, time.Minute, time.Millisecond)
	require.False(t, log.Count("has returned") > 0)
	release()
	require.NoError(t, <-ended)
	require.Eventually(t, func() bool { return log.Count("has returned") > 0 }, time.Minute, time.Millisecond)
}
