package engine_test

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/internal/testrig"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// null is a controller that completes every command of I/O queue 1 at once, without data; the admin queue is softctl's.
type null struct {
	*testrig.Intercepted
	maps       []gpu.Memory // in order: admin queue, submission queues, completion queues, ...
	head, tail int
	phase      uint32
	depth      int
}

func (n *null) Map(m gpu.Memory, off, size int64) (nvme.IOVA, error) {
	n.maps = append(n.maps, m)
	return n.Intercepted.Map(m, off, size)
}

func (n *null) Step(sqid uint16) bool {
	if sqid != 1 {
		return n.Intercepted.Step(sqid)
	}
	le, tail := binary.LittleEndian, int(binary.LittleEndian.Uint32(n.Intercepted.Controller.BAR()[0x1008:]))
	did := n.head != tail
	for ; n.head != tail; n.head = (n.head + 1) % n.depth {
		cid := le.Uint16(n.maps[1].Host()[n.head*64+2:])
		cqe := n.maps[2].Host()[n.tail*16:]
		le.PutUint64(cqe, 0)
		le.PutUint32(cqe[8:], 1<<16)
		le.PutUint32(cqe[12:], uint32(cid)|n.phase<<16)
		if n.tail++; n.tail == n.depth {
			n.tail, n.phase = 0, n.phase^1
		}
	}
	return did
}

func newNull(t testing.TB) *rig {
	b, cfg, _ := testrig.Intercept(t, softctl.Options{})
	n := &null{Intercepted: b, phase: 1, depth: 64}
	cfg.Transport = n
	c, err := controller.Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	e, err := engine.New(c, engine.Config{Lanes: 1, Depth: n.depth, Team: testrig.Team(t)})
	require.NoError(t, err)
	return &rig{Rig: &testrig.Rig{Runtime: cfg.Runtime, Controller: c, Engine: e, Block: 512}}
}

// TestNoAllocations: a command costs no garbage.
func TestNoAllocations(t *testing.T) {
	r := newNull(t)
	if !r.Runtime.Facts().CallerDriven {
		require.NoError(t, r.Controller.Close())
		t.Skip("a launch of a vendor's library allocates; on the host runtime nothing does")
	}
	c := r.Chunk(t, 1<<20)
	for _, n := range []int{1, 100} {
		cmds := make([]engine.Command, n)
		for i := range cmds {
			cmds[i] = r.RW(nvme.IORead, 0, c, 0, 4096)
		}
		require.Zero(t, testing.AllocsPerRun(200, func() {
			if err := r.Engine.Do(engine.AnyLane, cmds); err != nil {
				t.Error(err)
			}
		}))
	}
}

// BenchmarkEngine is the engine and the lane alone: a controller that does nothing, on the caller's thread.
func BenchmarkEngine(b *testing.B) {
	r := newNull(b)
	c := r.Chunk(b, 1<<20)
	for _, bm := range []struct {
		name string
		n    int
		size int64
	}{{"one", 1, 4096}, {"one of 1 MiB", 1, 1 << 20}, {"batch of 32", 32, 4096}} {
		b.Run(bm.name, func(b *testing.B) {
			cmds := make([]engine.Command, bm.n)
			for i := range cmds {
				cmds[i] = r.RW(nvme.IORead, 0, c, 0, bm.size)
			}
			for b.Loop() {
				if err := r.Engine.Do(engine.AnyLane, cmds); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
