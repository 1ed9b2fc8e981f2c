package engine_test

import (
	"io"
	"log/slog"
	"strings"
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

// hangs is a transport whose Unmap does not return while it is armed. What it is to unmap it does not have any more.
type hangs struct {
	*reach
	armed atomic.Bool
	hung  atomic.Int64
	until chan struct{}
}

func (h *hangs) Unmap(a nvme.IOVA) error {
	err := h.reach.Unmap(a)
	if h.armed.Load() {
		h.hung.Add(1)
		<-h.until
	}
	return err
}

// TestFailoverUnmapHangs: to unmap memory of a GPU that has failed may hang in its driver. The lanes move all the same, callers notice nothing, and engine and controller
// are closed: what hangs is left behind, and the log says so, once.
func TestFailoverUnmapHangs(t *testing.T) {
	for _, when := range []string{"in the failover", "at the end"} {
		t.Run(when, func(t *testing.T) {
			var h *hangs
			f := newFailingOn(t, true, false, softctl.Options{}, engine.Config{Lanes: 2}, func(t controller.Transport) controller.Transport {
				h = &hangs{reach: t.(*reach), until: make(chan struct{})}
				return h
			})
			t.Cleanup(func() { close(h.until) }) // before the controller's, which is closed by then
			const chunks = 20
			var data []*controller.Chunk
			for range chunks {
				c, err := f.Controller.AllocData(4096)
				require.NoError(t, err)
				data = append(data, c)
			}
			read := []engine.Command{f.RW(nvme.IORead, 0, data[0], 0, 4096)}
			require.NoError(t, f.Engine.Do(0, read))
			h.armed.Store(when == "in the failover")
			f.dev.Hang()
			until(t, "the lanes move", func() bool {
				require.NoError(t, f.Engine.Do(0, read))
				return f.Controller.Failover() != nil
			})
			h.armed.Store(true)
			require.NoError(t, f.Engine.Do(1, read))
			ended := make(chan error, 1)
			go func() {
				for _, c := range data {
					if err := c.Close(); err != nil {
						ended <- err
						return
					}
				}
				if err := f.Engine.Close(); err != nil {
					ended <- err
					return
				}
				ended <- f.Controller.Close()
			}()
			select {
			case err := <-ended:
				require.NoError(t, err)
			case <-time.After(time.Minute):
				require.FailNow(t, "it is not closed")
			}
			require.Greater(t, h.hung.Load(), int64(chunks))
			require.Equal(t, 1, f.Log.Count("unmapping memory hangs"))
		})
	}
}

// TestUnmapWaits: as long as no runtime has failed what unmaps is waited for, since the memory is freed then.
func TestUnmapWaits(t *testing.T) {
	var h *hangs
	f := newFailingOn(t, true, false, softctl.Options{}, engine.Config{Lanes: 1}, func(t controller.Transport) controller.Transport {
		h = &hangs{reach: t.(*reach), until: make(chan struct{})}
		return h
	})
	c, err := f.Controller.AllocData(4096)
	require.NoError(t, err)
	h.armed.Store(true)
	ended := make(chan error, 1)
	go func() { ended <- c.Close() }()
	until(t, "it unmaps", func() bool { return h.hung.Load() == 1 })
	select {
	case <-ended:
		require.FailNow(t, "the memory is still mapped")
	case <-time.After(3 * time.Second):
	}
	h.armed.Store(false)
	close(h.until)
	require.NoError(t, <-ended)
}

// TestSettledByReset: completions of commands that had timed out before a reset cannot come any more. The next command that times out is aborted, and that is all.
func TestSettledByReset(t *testing.T) {
	ec := fast
	ec.Lanes, ec.Retries = 1, -1
	r := newRig(t, softctl.Options{Latency: time.Second}, ec)
	c := r.Chunk(t, 4096)
	read := []engine.Command{r.RW(nvme.IORead, 5, c, 0, 4096)}
	for _, op := range []nvme.Opcode{nvme.AdminAbort, nvme.AdminDeleteSQ} { // so that the completion does not come, and a reset is needed
		code := uint8(op)
		r.Rules.Add(softctl.Rule{Admin: true, Opcode: &code, Times: 1, Do: softctl.Verdict{Status: softctl.Status(nvme.StatusInternal)}})
	}
	require.ErrorIs(t, r.Engine.Do(0, read), controller.ErrTimeout)
	require.Equal(t, [4]int{1, 1, 1, 0}, r.rungs(), "the queue pair cannot be deleted")
	require.ErrorIs(t, r.Engine.Do(0, read), controller.ErrTimeout)
	require.Equal(t, [4]int{2, 1, 1, 0}, r.rungs())
}

// TestCloseWhileKernelRuns: an engine whose kernels do not end has a runtime that has failed. Nothing of it is freed or closed then, also by the controller: a kernel may
// use it, and the call may not return.
func TestCloseWhileKernelRuns(t *testing.T) {
	dev, err := detached.New(true)
	require.NoError(t, err)
	calls := &faults{}
	rt := &faulty{Runtime: dev, faults: calls, name: "the GPU"}
	soft, err := softctl.Open(testrig.NewImage(t), softctl.Options{Threads: 1, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, soft.Close()) })
	mapped := &reach{Controller: soft, now: map[nvme.IOVA]int64{}}
	c, err := controller.Open(controller.Config{Runtime: rt, Transport: mapped, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Spare: func() (gpu.Runtime, error) { return host.Open(host.Options{}) }})
	require.NoError(t, err)
	e, err := engine.New(c, engine.Config{Lanes: 1})
	require.NoError(t, err)
	until(t, "no kernel runs", func() bool { return dev.Running() == 0 })
	require.False(t, c.RuntimeFailed())
	open := calls.open
	require.NotZero(t, open)
	calls.arm(1)
	err = e.Close()
	require.True(t, strings.HasPrefix(calls.failed(), "waiting on"), calls.failed())
	require.ErrorContains(t, err, "its memory is left allocated")
	require.True(t, c.RuntimeFailed())
	require.NoError(t, c.Close())
	require.Equal(t, open, calls.open, "nothing is freed")
	require.Empty(t, mapped.now, "all is unmapped")
}
