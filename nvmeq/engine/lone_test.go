package engine_test

import (
	"bytes"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/internal/fill"
	"github.com/lanefs/lanefs/nvmeq/internal/testrig"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// lone is a command of whole blocks of 512 bytes.
func lone(op nvme.Opcode, slba uint64, bytes uint32, data nvme.IOVA) controller.LoneCommand {
	return controller.LoneCommand{Op: op, NSID: 1, SLBA: slba, Blocks: bytes / 512, Bytes: bytes, Data: data}
}

// newLone is a rig over a block device, whose controller carries out lone commands.
func newLone(t *testing.T, ec engine.Config) *rig {
	t.Helper()
	dev, _ := testrig.NewLoop(t)
	r := &rig{Rig: testrig.NewOn(t, dev, softctl.Options{}, ec)}
	if !r.Stepped() {
		t.Skip("SKIPPED: the lanes do not run on the callers' threads")
	}
	require.EqualValues(t, math.MaxInt64, r.Engine.LoneMost())
	require.False(t, r.Engine.Lone(lone(nvme.IORead, 0, 4096, r.Chunk(t, 4096).IOVA())), "the rig's injector decides")
	r.Soft.SetInjector(nil)
	return r
}

// A lone command rings no doorbell, and is counted by its lane, and by the controller, as any other.
func TestLone(t *testing.T) {
	r := newLone(t, engine.Config{Lanes: 1}) // of several each of Go's processors begins with another
	c := r.Chunk(t, 8192)
	fill.Fill(c.Bytes()[:4096], 7)
	require.True(t, r.Engine.Lone(lone(nvme.IOWrite, 16, 4096, c.IOVA())))
	require.True(t, r.Engine.Lone(lone(nvme.IORead, 16, 4096, c.IOVA()+4096)))
	require.True(t, bytes.Equal(c.Bytes()[:4096], c.Bytes()[4096:]))
	s := r.Engine.Stats()[0]
	require.Equal(t, engine.LaneStats{QID: s.QID, Commands: 2, Lone: 2, Completions: 2, BytesRead: 4096, BytesWritten: 4096}, s)
	require.False(t, r.Engine.Lone(lone(nvme.IORead, 1<<40, 4096, c.IOVA())), "beyond the end")
	require.NoError(t, r.Engine.Do(engine.AnyLane, []engine.Command{r.RW(nvme.IORead, 16, c, 0, 4096)}))
	require.EqualValues(t, 3, r.Engine.Stats()[0].Commands)
	require.EqualValues(t, 1, r.Engine.Stats()[0].SQDoorbells)
	require.NoError(t, r.Engine.Close())
	require.False(t, r.Engine.Lone(lone(nvme.IORead, 16, 4096, c.IOVA())), "closed")
	require.EqualValues(t, 3, r.Engine.Stats()[0].Commands, "as they were at the end")
}

// While memory has a keeper no command is a lone one: the keeper is asked when a command has ended.
func TestLoneKept(t *testing.T) {
	r := newLone(t, engine.Config{Lanes: 1})
	m, err := r.Runtime.Alloc(gpu.HostMapped, 4096)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	k := &terms{}
	borrowed, err := r.Controller.Borrow(lent{m, k})
	require.NoError(t, err)
	require.False(t, r.Engine.Lone(lone(nvme.IORead, 16, 4096, borrowed.IOVA())))
	require.NoError(t, r.Engine.Do(engine.AnyLane, []engine.Command{r.RW(nvme.IORead, 16, borrowed, 0, 4096)}))
	require.Equal(t, 1, k.arrived)
	require.NoError(t, borrowed.Close())
	require.True(t, r.Engine.Lone(lone(nvme.IORead, 16, 4096, r.Chunk(t, 4096).IOVA())))
}

// A block device has so many lanes that callers on few processors do not wait for one another's system calls; an image's are as many as processors work on.
func TestLoneLanes(t *testing.T) {
	require.GreaterOrEqual(t, newLone(t, engine.Config{}).Engine.Lanes(), 32)
	image := &rig{Rig: testrig.New(t, softctl.Options{}, engine.Config{})}
	require.EqualValues(t, 64<<10, image.Engine.LoneMost())
	require.Equal(t, max(4, runtime.NumCPU()), image.Engine.Lanes())
}

// Callers of Lone and of Do, more than there are lanes, and resets beside them: each caller reads what it wrote, and none is left waiting.
func TestLoneBesideResets(t *testing.T) {
	r := newLone(t, engine.Config{Lanes: 1})
	var alone atomic.Int64 // may stay 0: a lane that callers of Do hand to one another is never idle
	var all sync.WaitGroup
	for i := range uint64(6) {
		c := r.Chunk(t, 8192)
		all.Go(func() {
			for k := range uint64(200) {
				fill.Fill(c.Bytes()[:4096], i<<32|k)
				clear(c.Bytes()[4096:])
				for part, op := range []nvme.Opcode{nvme.IOWrite, nvme.IORead} {
					if k%8 != 7 && r.Engine.Lone(lone(op, 8*i, 4096, c.IOVA()+nvme.IOVA(4096*part))) {
						alone.Add(1)
						continue
					}
					if err := r.Engine.Do(engine.AnyLane, []engine.Command{r.RW(op, 8*i, c, int64(4096*part), 4096)}); err != nil {
						t.Error(err)
						return
					}
				}
				if !bytes.Equal(c.Bytes()[:4096], c.Bytes()[4096:]) {
					t.Errorf("caller %d, round %d", i, k)
					return
				}
			}
		})
	}
	for range 5 {
		require.NoError(t, r.Controller.Reset())
	}
	all.Wait()
	t.Logf("%d of 2,400 commands were lone", alone.Load())
	require.True(t, r.Engine.Lone(lone(nvme.IORead, 0, 4096, r.Chunk(t, 4096).IOVA())), "the lane is idle")
}

// A caller of Do that comes to a lane during a lone command gets its turn.
func TestLoneHandsOver(t *testing.T) {
	r := newLone(t, engine.Config{Lanes: 1})
	const n = 1 << 20
	long, short := r.Chunk(t, n), r.Chunk(t, 4096)
	for range 100 {
		ended := make(chan bool)
		begun := make(chan struct{})
		go func() {
			close(begun)
			ended <- r.Engine.Lone(lone(nvme.IORead, 0, n, long.IOVA()))
		}()
		<-begun
		require.NoError(t, r.Engine.Do(engine.AnyLane, []engine.Command{r.RW(nvme.IORead, 16, short, 0, 4096)}))
		<-ended
	}
}

// Beside a GPU the lanes on the CPU carry out lone commands that are short. After a failover all go by Do, which refuses what gpu_error=ro refuses.
func TestLoneBesideGPU(t *testing.T) {
	dev, _ := testrig.NewLoop(t)
	rt := openHost(t)
	f := newFailingImage(t, dev, true, true, softctl.Options{Queues: 16}, engine.Config{Lanes: 2, CPULanes: 2, CPU: rt, HangTimeout: 100 * time.Millisecond},
		func(t controller.Transport) controller.Transport { return t })
	c := f.Chunk(t, 1<<20)
	fill.Fill(c.Bytes()[:4096], 3)
	require.False(t, f.Engine.Lone(lone(nvme.IOWrite, 16, 4096, c.IOVA())), "the rig's injector decides")
	f.Soft.SetInjector(nil)
	until(t, "a thread has left the queue", func() bool { return f.Engine.Lone(lone(nvme.IOWrite, 16, 4096, c.IOVA())) })
	require.True(t, f.Engine.Lone(lone(nvme.IORead, 16, 4096, c.IOVA()+4096)))
	require.True(t, bytes.Equal(c.Bytes()[:4096], c.Bytes()[4096:8192]))
	require.False(t, f.Engine.Lone(lone(nvme.IORead, 0, 256<<10, c.IOVA())), "long")
	all, cpu := submitted(f.Engine)
	require.EqualValues(t, 2, all)
	require.EqualValues(t, 2, cpu)
	require.EqualValues(t, 2, f.Engine.Chosen().Software)

	f.dev.Lose()
	require.NoError(t, f.Engine.Do(0, []engine.Command{f.RW(nvme.IORead, 16, c, 0, 4096)}))
	until(t, "the lanes are on the CPU", func() bool { return f.Controller.Failover() != nil })
	var after engine.LaneStats // of what the CPU's lanes had carried out before
	for _, s := range f.Engine.Stats()[2:] {
		after.Commands, after.Lone, after.Completions = after.Commands+s.Commands, after.Lone+s.Lone, after.Completions+s.Completions
		after.BytesRead, after.BytesWritten = after.BytesRead+s.BytesRead, after.BytesWritten+s.BytesWritten
	}
	require.Equal(t, engine.LaneStats{Commands: 2, Lone: 2, Completions: 2, BytesRead: 4096, BytesWritten: 4096}, after, "counted once")
	require.False(t, f.Engine.Lone(lone(nvme.IOWrite, 16, 4096, c.IOVA())))
	require.ErrorIs(t, f.Engine.Do(engine.AnyLane, []engine.Command{f.RW(nvme.IOWrite, 16, c, 0, 4096)}), engine.ErrReadOnly)
}
