package engine_test

import (
	"log/slog"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/gputest/detached"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/internal/fill"
	"github.com/lanefs/lanefs/nvmeq/internal/testrig"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// narrow is a device that holds few blocks at once. It counts streams, and looks at the shapes of launches.
type narrow struct {
	*detached.Runtime
	blocks  int64
	mu      sync.Mutex
	streams int               // protected by mu
	shapes  map[gpu.Dim3]bool // protected by mu: grids of resident kernels
}

func (n *narrow) Load(image []byte) (gpu.Module, error) {
	m, err := n.Runtime.Load(image)
	return narrowModule{m, n}, err
}

type narrowModule struct {
	gpu.Module
	n *narrow
}

func (m narrowModule) Function(name string) (gpu.Function, error) {
	f, err := m.Module.Function(name)
	return narrowFunction{f, m.n}, err
}

type narrowFunction struct {
	gpu.Function
	n *narrow
}

func (f narrowFunction) Fits(gpu.Dim3) (int64, error) { return f.n.blocks, nil }

func (n *narrow) NewStream() (gpu.Stream, error) {
	n.mu.Lock()
	n.streams++
	n.mu.Unlock()
	s, err := n.Runtime.NewStream()
	return narrowStream{s, n}, err
}

type narrowStream struct {
	gpu.Stream
	n *narrow
}

func (s narrowStream) Launch(f gpu.Function, grid, block gpu.Dim3, args ...uint64) error {
	if len(args) == 6 {
		s.n.mu.Lock()
		s.n.shapes[gpu.Dim3{X: grid.X, Y: block.X}] = true
		s.n.mu.Unlock()
	}
	return s.Stream.Launch(f.(narrowFunction).Function, grid, block, args...)
}

// newPairs is an engine of so many lanes, a thread each, on a device that holds so many blocks.
func newPairs(t *testing.T, lanes int, blocks int64) (*rig, *narrow) {
	t.Helper()
	dev := openDetached(t)
	rt := &narrow{Runtime: dev, blocks: blocks, shapes: map[gpu.Dim3]bool{}}
	soft := openServed(t, dev, softctl.Options{Queues: lanes})
	c, err := controller.Open(controller.Config{Runtime: rt, Transport: soft, Queues: lanes, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	e, err := engine.New(c, engine.Config{Lanes: lanes, Depth: 4, MaxTransfer: 64 << 10})
	require.NoError(t, err)
	return &rig{Rig: &testrig.Rig{Runtime: rt, Controller: c, Engine: e, Soft: soft, Block: 512}}, rt
}

// TestThousandPairs drives 1,024 queue pairs: each lane has a queue pair of its own, all are in one launch, and one stream is all that it
// takes. Then some are reset, one by one and all together, and all go on.
func TestThousandPairs(t *testing.T) {
	const pairs = 1024
	r, rt := newPairs(t, pairs, 512)
	require.Equal(t, pairs, r.Engine.Lanes())
	require.Less(t, rt.streams, 4)
	c := r.Chunk(t, pairs*512)
	do := func(op nvme.Opcode) {
		t.Helper()
		var callers sync.WaitGroup
		for w := range 16 {
			callers.Go(func() {
				for lane := w; lane < pairs; lane += 16 {
					if err := r.Engine.Do(lane, []engine.Command{r.RW(op, uint64(lane), c, int64(lane)*512, 512)}); err != nil {
						t.Errorf("lane %d: %v", lane, err)
						return
					}
				}
			})
		}
		callers.Wait()
	}
	check := func() {
		t.Helper()
		want := make([]byte, len(c.Bytes()))
		fill.Fill(want, 5)
		clear(c.Bytes())
		do(nvme.IORead)
		require.Equal(t, want, c.Bytes())
	}
	fill.Fill(c.Bytes(), 5)
	do(nvme.IOWrite)
	check()
	seen := map[uint16]bool{}
	for _, s := range r.Engine.Stats() {
		require.Equal(t, uint64(2), s.Commands, "lane %d", s.Lane)
		seen[s.QID] = true
	}
	require.Len(t, seen, pairs, "a queue pair each")
	require.NoError(t, r.Controller.Reset())
	check()
	all := make([]engine.Command, 3*pairs)
	for i := range all {
		all[i] = r.RW(nvme.IORead, uint64(i%pairs), c, int64(i%pairs)*512, 512)
	}
	require.NoError(t, r.Engine.Spread(all))
	require.Equal(t, map[gpu.Dim3]bool{{X: pairs / 4, Y: 4}: true}, rt.shapes, "half of the device is left to others")
	require.NoError(t, r.Engine.Close())
}

// There are no more lanes than the device can hold at once with others' kernels: 256 threads in a block, half of the blocks.
func TestLanesThatFit(t *testing.T) {
	r, rt := newPairs(t, 600, 4)
	require.Equal(t, 512, r.Engine.Lanes())
	c := r.Chunk(t, 512)
	require.NoError(t, r.Engine.Do(511, []engine.Command{r.RW(nvme.IORead, 0, c, 0, 512)}))
	require.Equal(t, map[gpu.Dim3]bool{{X: 2, Y: 256}: true}, rt.shapes)
	require.NoError(t, r.Engine.Close())
}
