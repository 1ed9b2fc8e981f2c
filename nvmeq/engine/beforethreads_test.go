package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/internal/testrig"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// beside is an engine with lanes on a GPU and the CPU, neither of which is late, over an image or block device.
func beside(t *testing.T, image string, ec engine.Config) *failing {
	t.Helper()
	rt := openHost(t)
	ec.Lanes, ec.CPULanes, ec.CPU, ec.HangTimeout, ec.LateAfter = 2, 2, rt, time.Minute, time.Minute
	f := newFailingImage(t, image, false, false, softctl.Options{Queues: 16}, ec, func(t controller.Transport) controller.Transport { return t })
	f.Soft.SetInjector(nil) // else no command is a lone one
	return f
}

// TestBeforeThreads: it is called before commands go to a GPU's lanes or a block device's io_uring, by Do as by Spread, and not before others.
func TestBeforeThreads(t *testing.T) {
	calls := 0
	count := engine.Config{BeforeThreads: func() { calls++ }}
	called := func(want int, do ...func() error) {
		t.Helper()
		for _, do := range do {
			calls = 0
			require.NoError(t, do())
			require.Equal(t, want, calls)
		}
	}
	ways := func(e *engine.Engine, cmds ...engine.Command) []func() error {
		return []func() error{func() error { return e.Do(engine.AnyLane, cmds) }, func() error { return e.Do(0, cmds) }, func() error { return e.Spread(cmds) }}
	}
	const long = 256 << 10

	f := beside(t, testrig.NewImage(t), count)
	c := f.Chunk(t, long)
	short := f.RW(nvme.IORead, 0, c, 0, 4096)
	called(1, ways(f.Engine, f.RW(nvme.IORead, 0, c, 0, long))...)
	called(1, ways(f.Engine, f.RW(nvme.IORead, 0, c, 0, long), short)...)
	called(0, func() error { return f.Engine.Do(engine.AnyLane, []engine.Command{short}) }, func() error { return f.Engine.Spread([]engine.Command{short, short}) })

	dev, _ := testrig.NewLoop(t)
	f = beside(t, dev, count)
	c = f.Chunk(t, long)
	called(1, ways(f.Engine, f.RW(nvme.IORead, 0, c, 0, 4096))...)
	calls = 0
	until(t, "a lane is free", func() bool { return f.Engine.Lone(lone(nvme.IORead, 0, 4096, c.IOVA())) })
	require.Zero(t, calls)

	r := newRig(t, softctl.Options{}, count)
	c = r.Chunk(t, 8192)
	want := 0
	if !r.Runtime.Facts().CallerDriven {
		want = 1
	}
	called(want, ways(r.Engine, r.RW(nvme.IORead, 0, c, 0, 4096))...)
}

// TestHostOnCPU: with it the CPU's lanes have all of a software controller's commands whose data is in host memory, lone ones too.
func TestHostOnCPU(t *testing.T) {
	const long = 1 << 20
	f := beside(t, testrig.NewImage(t), engine.Config{HostOnCPU: true})
	c := f.Chunk(t, long)
	cmds := []engine.Command{f.RW(nvme.IORead, 0, c, 0, long)}
	require.NoError(t, f.Engine.Do(engine.AnyLane, cmds))
	require.NoError(t, f.Engine.Spread(append(cmds, cmds...)))
	require.Equal(t, engine.Chosen{Software: 2}, f.Engine.Chosen())

	dev, _ := testrig.NewLoop(t)
	f = beside(t, dev, engine.Config{HostOnCPU: true})
	c = f.Chunk(t, long)
	until(t, "a lane is free", func() bool { return f.Engine.Lone(lone(nvme.IORead, 0, long, c.IOVA())) })
	m, err := f.Runtime.Alloc(gpu.HostMapped, long)
	require.NoError(t, err)
	borrowed, err := f.Controller.Borrow(placed{m, gpu.Reach{Owner: gpu.OwnerDevice, Device: "0000:01:00.0"}})
	require.NoError(t, err)
	before := f.Engine.Chosen()
	require.False(t, f.Engine.Lone(lone(nvme.IORead, 0, long, borrowed.IOVA())), "what copy engines move")
	require.Equal(t, before, f.Engine.Chosen())
	require.NoError(t, borrowed.Close())
	require.NoError(t, m.Close())
}
