package gputest

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/kernels"
	"github.com/lanefs/lanefs/kernels/kerneltest"
)

// loaded is lanes whose commands are made on the device, with a controller that completes them at once: a kernel
// (kernels/kerneltest) or threads of the CPU.
type loaded struct {
	*device
	shape
	team
	at          places
	n           int
	own, queues gpu.Memory // n blocks each, of which the places' parts are used as shape.describe says
	stage, out  gpu.Memory // what the CPU writes and reads
	tests       gpu.Module
	words       gpu.Memory // of resident launches
	launches    uint64
	perBell     float64 // SQEs a doorbell covered, of the run before
}

// loadShape is a queue pair of a size that drives have.
var loadShape = shape{sq: 256, cq: 256, ring: 256, cids: 255, stride: 64}

func newLoaded(t testing.TB, open Open, workers team, n int, queues gpu.MemKind) *loaded {
	t.Helper()
	d := start(t, open)
	l := &loaded{device: d, shape: loadShape, team: workers, at: loadShape.places(), n: n}
	l.own, l.queues = d.alloc(gpu.DeviceFine, int64(n)*l.at.size), d.alloc(queues, int64(n)*l.at.size)
	l.stage, l.out, l.words = d.alloc(gpu.HostMapped, 4096), d.alloc(gpu.HostMapped, 4096), d.word(n)
	image, err := kerneltest.Image(d.Facts().Arch)
	require.NoError(t, err)
	l.tests, err = d.Load(image)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.tests.Close()) })
	for i := range n {
		lane := l.describe(l.base(i), uint64(l.queues.Addr())+uint64(int64(i)*l.at.size))
		lane.Silent = silent
		copy(l.stage.Host(), unsafe.Slice((*byte)(unsafe.Pointer(&lane)), kernels.LaneSize))
		base := gpu.Addr(l.base(i))
		require.NoError(t, d.stream.Fill(base, 0, l.at.size))
		require.NoError(t, d.stream.Copy(base+gpu.Addr(l.at.lane), l.stage.Addr(), kernels.LaneSize))
		require.NoError(t, d.stream.Wait(patience))
	}
	return l
}

func (l *loaded) base(i int) uint64 { return uint64(l.own.Addr()) + uint64(int64(i)*l.at.size) }

// reset makes lanes and doorbells new.
func (l *loaded) reset() {
	l.t.Helper()
	clear(l.out.Host())
	for i := range l.n {
		l.launch(kernels.ResetKernel, 1, 1, l.base(i)+uint64(l.at.lane), 1)
		// Park is what the feeder said last.
		require.NoError(l.t, l.stream.Fill(gpu.Addr(l.base(i))+gpu.Addr(l.at.control), 0, 64))
		require.NoError(l.t, l.stream.Fill(l.queues.Addr()+gpu.Addr(int64(i)*l.at.size+l.at.doorbells), 0, 64))
	}
	require.NoError(l.t, l.stream.Wait(patience))
}

// together runs kernels that need one another, each on a stream of its own, and returns when all have ended.
func (l *loaded) together(all ...started) {
	l.t.Helper()
	var done sync.WaitGroup
	for _, k := range all {
		f, err := l.tests.Function(k.name)
		require.NoError(l.t, err)
		s, err := l.NewStream()
		require.NoError(l.t, err)
		done.Go(func() { // a caller-driven runtime runs the kernel here
			err := s.Launch(f, gpu.Dim3{X: uint32(l.n), Y: 1, Z: 1}, gpu.Dim3{X: uint32(k.threads), Y: 1, Z: 1}, k.args...)
			if err == nil {
				err = s.Wait(patience)
			}
			if err != nil {
				l.t.Errorf("%s: %v", k.name, err)
			}
			if err := s.Close(); err != nil {
				l.t.Error(err)
			}
		})
	}
	done.Wait()
}

type started struct {
	name    string
	threads int
	args    []uint64
}

// limit of the kernels' waits, in ticks: on a device less than patience, on a CPU, which may be busy, minutes.
func (l *loaded) limit() uint64 {
	if l.Facts().CallerDriven {
		return 1e12
	}
	return 20e9
}

// selfFed carries out total commands on each lane, made by the lane's own team; null says that a kernel completes them.
func (l *loaded) selfFed(total, depth uint64, null bool) {
	l.t.Helper()
	name, wide := kerneltest.LoadKernel, l.Facts().WaveSize
	if l.team.step == wave.step {
		name = kerneltest.WaveLoadKernel
	}
	lanes, stride := l.base(0)+uint64(l.at.lane), uint64(l.at.size)
	all := []started{{name, l.threads(l.Facts()), []uint64{lanes, stride, total, depth, l.limit()}}}
	if null {
		all = append(all, started{kerneltest.NullKernel, wide, []uint64{lanes, stride, total, l.limit(), uint64(l.out.Addr())}})
	}
	l.together(all...)
	for i := range l.n {
		if null {
			require.Equal(l.t, total, words64(l.out.Host())[i], "completed by the controller of queue %d", i)
		}
		l.sameTotals(i, total)
	}
}

// fed carries out total commands on each lane, by the engine's resident loop, whose work ring another wave feeds.
func (l *loaded) fed(total, most uint64) {
	l.t.Helper()
	name, wide := kerneltest.LaneKernel, l.Facts().WaveSize
	if l.team.step == wave.step {
		name = kerneltest.WaveLaneKernel
	}
	// The rings go on where they were; a feeder starts at their beginning.
	for i := range l.n {
		lane := l.lane(i)
		lane.WorkNext, lane.ResultNext = 0, 0
		l.putLane(i, lane)
		require.NoError(l.t, l.stream.Fill(gpu.Addr(l.base(i))+gpu.Addr(l.at.work), 0, l.at.cids-l.at.work))
	}
	require.NoError(l.t, l.stream.Wait(patience))
	lanes, stride, out := l.base(0)+uint64(l.at.lane), uint64(l.at.size), uint64(l.out.Addr())
	l.launches++
	l.together(started{name, l.threads(l.Facts()), []uint64{lanes, stride, l.limit(), uint64(l.words.Addr()), l.launches}},
		started{kerneltest.NullKernel, wide, []uint64{lanes, stride, total, l.limit(), out}},
		started{kerneltest.FeedKernel, wide, []uint64{lanes, stride, total, most, l.limit(), out + 2048}})
	for i := range l.n {
		require.Equal(l.t, total, words64(l.out.Host())[i], "completed by the controller of queue %d", i)
		require.Zero(l.t, words64(l.out.Host())[256+i], "wrong answers of lane %d", i)
		l.sameTotals(i, total)
	}
}

// lane reads a lane back.
func (l *loaded) lane(i int) kernels.Lane {
	l.t.Helper()
	require.NoError(l.t, l.stream.Copy(l.stage.Addr(), gpu.Addr(l.base(i))+gpu.Addr(l.at.lane), kernels.LaneSize))
	require.NoError(l.t, l.stream.Wait(patience))
	return *(*kernels.Lane)(unsafe.Pointer(&l.stage.Host()[0]))
}

func (l *loaded) putLane(i int, lane kernels.Lane) {
	l.t.Helper()
	*(*kernels.Lane)(unsafe.Pointer(&l.stage.Host()[0])) = lane
	require.NoError(l.t, l.stream.Copy(gpu.Addr(l.base(i))+gpu.Addr(l.at.lane), l.stage.Addr(), kernels.LaneSize))
	require.NoError(l.t, l.stream.Wait(patience))
}

// sameTotals: each of the commands was posted and completed once, and nothing else happened. Totals go on over a reset, so
// they are taken back.
func (l *loaded) sameTotals(i int, total uint64) {
	l.t.Helper()
	lane := l.lane(i)
	c := lane.Totals
	require.Equal(l.t, total, c.Commands, "commands of lane %d", i)
	require.Equal(l.t, total, c.Completions, "completions of lane %d", i)
	require.Equal(l.t, total*4096, c.BytesRead, "bytes read by lane %d", i)
	require.Zero(l.t, c.Errors+c.Timeouts+c.Late+c.Spurious+c.Rejected+uint64(lane.InFlight)+uint64(lane.Failed), "lane %d: %+v", i, lane)
	l.perBell = float64(c.Commands) / float64(c.SqDoorbells)
	lane.Totals = kernels.Counters{}
	l.putLane(i, lane)
}

// serveQueue plays the controller of lane i's queue on a thread of the CPU, until it has completed total commands.
func (l *loaded) serveQueue(i int, total uint64) {
	b := l.queues.Host()[int64(i)*l.at.size:]
	sq, cq := b[l.at.sq:], b[l.at.cq:]
	bell := (*uint32)(unsafe.Pointer(&b[l.at.doorbells]))
	head, tail, phase := uint32(0), uint32(0), uint64(1)
	for done, idle := uint64(0), 0; done < total; {
		rung := atomic.LoadUint32(bell)
		if rung == head {
			if idle++; idle == 1<<36 {
				return
			}
			continue
		}
		for ; head != rung; done++ {
			cid := uint64(binary.LittleEndian.Uint16(sq[head*64+2:]))
			if head++; head == l.shape.sq {
				head = 0
			}
			// DW0 and DW1 stay zero; DW2 and DW3 are one store.
			atomic.StoreUint64((*uint64)(unsafe.Pointer(&cq[tail*16+8])), (cid|phase<<16)<<32|1<<16|uint64(head))
			if tail++; tail == l.shape.cq {
				tail, phase = 0, phase^1
			}
		}
	}
}

// Load checks lanes under load from the device itself.
func Load(t *testing.T, open Open) {
	for name, workers := range map[string]team{"thread": thread, "wave": wave} {
		t.Run(name, func(t *testing.T) {
			l := newLoaded(t, open, workers, 1, gpu.HostCoherent)
			for depth, total := range map[uint64]uint64{1: 100, 3: 1000, 64: 5000, 255: 5000} {
				l.reset()
				l.selfFed(total, depth, true)
			}
			l.reset()
			l.fed(2000, 200)
		})
	}
}
