package engine_test

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/gputest/detached"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/internal/testrig"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// waiting is a device whose memory's Close waits for kernels that run, as cuMemFreeHost does.
type waiting struct {
	*detached.Runtime
	running atomic.Int64 // kernels that ran when memory was closed
}

func (w *waiting) Alloc(kind gpu.MemKind, n int64) (gpu.Memory, error) {
	m, err := w.Runtime.Alloc(kind, n)
	return waitingMemory{m, w}, err
}

type waitingMemory struct {
	gpu.Memory
	w *waiting
}

func (m waitingMemory) Close() error {
	m.w.running.Add(m.w.Running())
	return m.Memory.Close()
}

// unmappable refuses mappings once busy is set, which it calls first: the lanes work meanwhile.
type unmappable struct {
	*softctl.Controller
	busy func()
}

func (u *unmappable) Map(m gpu.Memory, off, n int64) (nvme.IOVA, error) {
	if u.busy != nil {
		u.busy()
		return 0, errors.New("no room in the IOMMU")
	}
	return u.Controller.Map(m, off, n)
}

// TestRefusedMapping: memory that could not be mapped, or is given back, is freed while no kernel runs. Freeing waits for kernels, and a
// lane's may run for long.
func TestRefusedMapping(t *testing.T) {
	dev := openDetached(t)
	rt := &waiting{Runtime: dev}
	soft := openServed(t, dev, softctl.Options{})
	u := &unmappable{Controller: soft}
	c, err := controller.Open(controller.Config{Runtime: rt, Transport: u, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	e, err := engine.New(c, engine.Config{Lanes: 2})
	require.NoError(t, err)
	r := &rig{Rig: &testrig.Rig{Runtime: rt, Controller: c, Engine: e, Soft: soft, Block: 512}}
	data := r.Chunk(t, 4096)
	u.busy = func() { // the kernel stays for 2 ms
		require.NoError(t, e.Do(0, []engine.Command{r.RW(nvme.IORead, 0, data, 0, 4096)}))
	}
	for range 10 {
		_, err = c.AllocData(4096)
		require.ErrorContains(t, err, "no room in the IOMMU")
	}
	require.Zero(t, rt.running.Load())

	work := u.busy
	u.busy = nil
	for range 10 {
		own, err := c.AllocData(4096)
		require.NoError(t, err)
		work()
		require.NoError(t, own.Close())
	}
	require.Zero(t, rt.running.Load())
}
