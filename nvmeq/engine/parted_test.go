package engine_test

import (
	"bytes"
	"errors"
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
	"github.com/lanefs/lanefs/nvmeq/internal/fill"
	"github.com/lanefs/lanefs/nvmeq/internal/testrig"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// slowWay is a drive whose data is long on its way: what it writes to memory that was mapped while parts is set is there once a register has been read.
// Completions are at once.
type slowWay struct {
	controller.Transport
	soft  *softctl.Controller
	rt    gpu.Runtime // has the memory of what is on its way
	parts atomic.Bool
	gone  atomic.Bool
	reads atomic.Int64 // of registers

	mu  sync.Mutex
	way map[nvme.IOVA]onWay
}

// onWay is memory, and what was written to it and has not arrived.
type onWay struct {
	memory, sent []byte
	is           gpu.Memory // sent
}

// elsewhere is memory that the controller is given in another's place.
type elsewhere struct {
	gpu.Memory
	bytes gpu.Memory
}

func (m elsewhere) Addr() gpu.Addr                              { return m.bytes.Addr() }
func (m elsewhere) Host() []byte                                { return m.bytes.Host() }
func (m elsewhere) Export(k gpu.ExportKind) (gpu.Export, error) { return m.bytes.Export(k) }

func (w *slowWay) Map(m gpu.Memory, off, n int64) (nvme.IOVA, error) {
	if !w.parts.Load() {
		return w.Transport.Map(m, off, n)
	}
	sent, err := w.rt.Alloc(gpu.HostMapped, m.Size())
	if err != nil {
		return 0, err
	}
	at, err := w.Transport.Map(elsewhere{m, sent}, off, n)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.way[at] = onWay{m.Host()[off : off+n], sent.Host()[off : off+n], sent}
	return at, err
}

func (w *slowWay) Unmap(at nvme.IOVA) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.Transport.Unmap(at)
	if m := w.way[at].is; m != nil {
		err = errors.Join(err, m.Close())
	}
	delete(w.way, at)
	return err
}

func (w *slowWay) Read32(off int64) uint32 {
	w.reads.Add(1)
	w.mu.Lock()
	for _, m := range w.way {
		copy(m.memory, m.sent)
	}
	w.mu.Unlock()
	if w.gone.Load() {
		return ^uint32(0)
	}
	return w.Transport.Read32(off)
}

func (w *slowWay) Write32(off int64, v uint32) {
	w.Transport.Write32(off, v)
	w.soft.Step(0)
}

// parted is such a drive, with a lane on a device and one on the CPU.
type parted struct {
	dev     *detached.Runtime
	way     *slowWay
	c       *controller.Controller
	e       *engine.Engine
	closing func(c interface{ Close() error }, err error) // closes it when the test ends, the last first
}

func newParted(t *testing.T, mode controller.MemoryMode) *parted {
	t.Helper()
	cpu := openHost(t)
	p := &parted{}
	var closers []interface{ Close() error }
	t.Cleanup(func() {
		for _, c := range closers {
			require.NoError(t, c.Close())
		}
	})
	p.closing = func(c interface{ Close() error }, err error) {
		t.Helper()
		require.NoError(t, err)
		closers = append([]interface{ Close() error }{c}, closers...)
	}
	dev, err := detached.New(true)
	p.closing(dev, err)
	p.dev = dev
	soft, err := softctl.Open(testrig.NewImage(t), softctl.Options{Threads: 1, Log: slog.New(slog.DiscardHandler)})
	p.closing(soft, err)
	place, err := mode.Placement()
	require.NoError(t, err)
	p.way = &slowWay{Transport: soft, soft: soft, rt: cpu, way: map[nvme.IOVA]onWay{}}
	p.c, err = controller.Open(controller.Config{Runtime: dev, Transport: p.way, Placement: place, Log: slog.New(slog.DiscardHandler)})
	p.closing(p.c, err)
	require.False(t, p.c.Simulated())
	end, ended := make(chan struct{}), make(chan struct{})
	go func() { // its threads sleep
		defer close(ended)
		for {
			select {
			case <-end:
				return
			case <-time.After(100 * time.Microsecond):
				soft.Step(1)
				soft.Step(2)
			}
		}
	}()
	t.Cleanup(func() { close(end); <-ended })
	p.e, err = engine.New(p.c, engine.Config{Lanes: 1, CPULanes: 1, CPU: cpu, LateAfter: time.Minute})
	p.closing(p.e, err)
	require.Equal(t, 1, p.e.CPULanes())
	return p
}

// TestDataGoesAnotherWay: a drive's data that goes to other memory than its completions has arrived when a command ends, whatever lanes carried it out and whoever's the
// memory is; and where both go one way no register is read for it.
func TestDataGoesAnotherWay(t *testing.T) {
	const size, rounds = 8192, 40
	for _, tc := range []struct {
		name     string
		mode     controller.MemoryMode
		cpu      bool // a lane on the CPU carries them out
		borrowed bool // the memory is a program's on the GPU
		parted   bool
	}{
		{name: "all in host memory"},
		{name: "all on the GPU", mode: controller.ModeSQ | controller.ModeCQ | controller.ModeData},
		{name: "data on the GPU", mode: controller.ModeData, parted: true},
		{name: "completions on the GPU", mode: controller.ModeCQ, parted: true},
		{name: "all on the GPU, a lane on the CPU", mode: controller.ModeSQ | controller.ModeCQ | controller.ModeData, cpu: true, parted: true},
		{name: "a program's memory on the GPU", borrowed: true, parted: true},
		{name: "a program's memory on the GPU, a lane on the CPU", mode: controller.ModeSQ, cpu: true, borrowed: true, parted: true},
		{name: "a program's memory on the GPU, completions too", mode: controller.ModeSQ | controller.ModeCQ, borrowed: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newParted(t, tc.mode)
			way, c, e, closing := p.way, p.c, p.e, p.closing
			source, err := c.AllocData(size)
			closing(source, err)
			fill.Fill(source.Bytes(), 7)
			rw := func(op nvme.Opcode, at *controller.Chunk) []engine.Command {
				return []engine.Command{{Op: op, NSID: 1, SLBA: 8, NLB: size / 512, Data: at.IOVA(), Len: size}}
			}
			lane := 0
			if tc.cpu {
				lane = 1
			}
			require.NoError(t, e.Do(lane, rw(nvme.IOWrite, source)))
			way.parts.Store(tc.parted)
			var target *controller.Chunk
			if tc.borrowed {
				m, err := p.dev.Alloc(gpu.DeviceFine, size)
				closing(m, err)
				target, err = c.Borrow(m)
				closing(target, err)
			} else {
				target, err = c.AllocData(size)
				closing(target, err)
			}
			before := way.reads.Load()
			for round := range rounds {
				clear(target.Bytes())
				if do := rw(nvme.IORead, target); tc.cpu || round%2 == 0 {
					require.NoError(t, e.Do(lane, do))
				} else {
					require.NoError(t, e.Spread(do))
				}
				require.True(t, bytes.Equal(source.Bytes(), target.Bytes()), "the bytes have not arrived")
			}
			if !tc.parted {
				require.Less(t, way.reads.Load()-before, int64(rounds))
				return
			}
			way.gone.Store(true)
			require.ErrorContains(t, e.Do(lane, rw(nvme.IORead, target)), "the device is gone")
			way.gone.Store(false)
		})
	}
}

// TestStoredByCPU: before a drive reads memory that the CPU writes by way of a BAR, its keeper is asked, once for a batch; where it is not there any more the command is not sent.
func TestStoredByCPU(t *testing.T) {
	const size = 8192
	p := newParted(t, 0)
	m, err := p.dev.Alloc(gpu.DeviceFine, size)
	p.closing(m, err)
	k := &terms{}
	borrowed, err := p.c.Borrow(lent{m, k})
	p.closing(borrowed, err)
	own, err := p.c.AllocData(size)
	p.closing(own, err)
	cmds := func(op nvme.Opcode) []engine.Command {
		var all []engine.Command
		for i, at := range []nvme.IOVA{own.IOVA(), borrowed.IOVA(), borrowed.IOVA() + 4096} {
			all = append(all, engine.Command{Op: op, NSID: 1, SLBA: uint64(8 * i), NLB: 8, Data: at, Len: 4096})
		}
		return all
	}
	for lane, do := range []func([]engine.Command) error{func(c []engine.Command) error { return p.e.Do(0, c) }, func(c []engine.Command) error { return p.e.Do(1, c) }, p.e.Spread} {
		before := k.arrived
		require.NoError(t, do(cmds(nvme.IOWrite)))
		require.Equal(t, before+1, k.arrived, "lane %d", lane)
	}
	k.lost = errors.New("the memory is gone")
	sent := p.way.soft.Counters()
	require.ErrorContains(t, p.e.Do(0, cmds(nvme.IOWrite)), "its data has not arrived: the memory is gone")
	for i, q := range p.way.soft.Counters() {
		require.Equal(t, sent[i].ByOpcode[uint8(nvme.IOWrite)], q.ByOpcode[uint8(nvme.IOWrite)])
	}
}
