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
			cpu := openHost(t)
			var closers []interface{ Close() error }
			t.Cleanup(func() {
				for _, c := range closers {
					require.NoError(t, c.Close())
				}
			})
			closing := func(c interface{ Close() error }, err error) {
				require.NoError(t, err)
				closers = append([]interface{ Close() error }{c}, closers...)
			}
			dev, err := detached.New(true)
			closing(dev, err)
			soft, err := softctl.Open(testrig.NewImage(t), softctl.Options{Threads: 1, Log: slog.New(slog.DiscardHandler)})
			closing(soft, err)
			place, err := tc.mode.Placement()
			require.NoError(t, err)
			way := &slowWay{Transport: soft, soft: soft, rt: cpu, way: map[nvme.IOVA]onWay{}}
			c, err := controller.Open(controller.Config{Runtime: dev, Transport: way, Placement: place, Log: slog.New(slog.DiscardHandler)})
			closing(c, err)
			require.False(t, c.Simulated())
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
			e, err := engine.New(c, engine.Config{Lanes: 1, CPULanes: 1, CPU: cpu, LateAfter: time.Minute})
			closing(e, err)
			require.Equal(t, 1, e.CPULanes())

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
				m, err := dev.Alloc(gpu.DeviceFine, size)
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
