package engine_test

import (
	"bytes"
	"errors"
	"fmt"
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

// hungMover is copies to and from a GPU's memory that do not return until they are let go of. Then they fail.
type hungMover struct {
	hung  atomic.Int64 // copies that have begun
	until chan struct{}
}

func (m *hungMover) Read([]byte, gpu.Memory, int64) error  { return m.call() }
func (m *hungMover) Write(gpu.Memory, int64, []byte) error { return m.call() }

func (m *hungMover) call() error {
	m.hung.Add(1)
	<-m.until
	return errHungMover
}

var errHungMover = errors.New("the copy was let go of")

// hungOf is copies of which those of one GPU's memory do not return.
type hungOf struct {
	hungMover
	device string
}

func (m *hungOf) Read(dst []byte, mem gpu.Memory, off int64) error {
	if mem.Reach().Device == m.device {
		return m.call()
	}
	copy(dst, mem.(unseen).Memory.Host()[off:])
	return nil
}

func (m *hungOf) Write(mem gpu.Memory, off int64, src []byte) error {
	if mem.Reach().Device == m.device {
		return m.call()
	}
	copy(mem.(unseen).Memory.Host()[off:], src)
	return nil
}

// addressed is a runtime of a GPU with an address of its own.
type addressed struct {
	gpu.Runtime
	pci string
}

func (r addressed) Facts() gpu.Facts {
	f := r.Runtime.Facts()
	f.PCI = r.pci
	return f
}

// unseen is a GPU's memory that the CPU cannot address.
type unseen struct{ placed }

func (unseen) Host() []byte { return nil }

// TestHungCopyLeavesLanes: copies to a GPU's memory that do not return, however many there are, keep no command from its end whose data is in host memory, lone or not, and whether it
// came before them or after.
func TestHungCopyLeavesLanes(t *testing.T) {
	const lanes, callers, size = 5, 3 * 5, 4096
	rt := openHost(t)
	m := &hungMover{until: make(chan struct{})}
	f := newFailing(t, false, false, softctl.Options{Queues: 16, Mover: m}, engine.Config{Lanes: 2, CPULanes: lanes, CPU: rt, HostOnCPU: true, HangTimeout: time.Minute, LateAfter: time.Minute})
	f.Soft.SetInjector(nil) // else nothing is lone
	mem, err := f.Runtime.Alloc(gpu.HostMapped, size)
	require.NoError(t, err)
	borrowed, err := f.Controller.Borrow(unseen{placed{mem, gpu.Reach{Owner: gpu.OwnerDevice, Device: "0000:01:00.0"}}})
	require.NoError(t, err)

	var host, device sync.WaitGroup
	var over atomic.Bool
	var rounds [callers]atomic.Int64
	for i := range callers {
		c := f.Chunk(t, 2*size)
		host.Go(func() {
			for round := uint64(1); !over.Load(); round++ {
				fill.Fill(c.Bytes()[:size], uint64(i)<<32|round)
				for part, op := range []nvme.Opcode{nvme.IOWrite, nvme.IORead} {
					at := c.IOVA() + nvme.IOVA(part*size)
					if round%2 == 0 && f.Engine.Lone(lone(op, uint64(8*i), size, at)) {
						continue
					}
					if err := f.Engine.Do(engine.AnyLane, []engine.Command{f.RW(op, uint64(8*i), c, int64(part*size), size)}); err != nil {
						t.Error(err)
						return
					}
				}
				if !bytes.Equal(c.Bytes()[:size], c.Bytes()[size:]) {
					t.Errorf("caller %d reads other bytes", i)
					return
				}
				rounds[i].Add(1)
			}
		})
	}
	goOn := func() {
		t.Helper()
		for i := range callers {
			was := rounds[i].Load()
			until(t, "a caller's commands end", func() bool { return rounds[i].Load() > was+20 })
		}
	}
	t.Cleanup(func() { // before the rig's
		over.Store(true)
		close(m.until)
		host.Wait()
		device.Wait()
		require.NoError(t, borrowed.Close())
		require.NoError(t, mem.Close())
	})
	goOn()
	for i := range callers {
		device.Go(func() {
			if i%2 == 0 && f.Engine.Lone(lone(nvme.IOWrite, 0, size, borrowed.IOVA())) {
				t.Error("a copy that failed has succeeded")
			}
			if f.Engine.Do(engine.AnyLane, []engine.Command{f.RW(nvme.IORead, 0, borrowed, 0, size)}) == nil {
				t.Error("a copy that failed has succeeded")
			}
		})
	}
	until(t, "a copy hangs", func() bool { return m.hung.Load() > 0 })
	goOn()
	require.Positive(t, m.hung.Load())
}

// TestHungCopyLeavesOtherGPUs: copies to one GPU's memory that do not return keep no command from its end whose data is in another's, on however few lanes.
func TestHungCopyLeavesOtherGPUs(t *testing.T) {
	const callers, size = 24, 4096
	for _, lanes := range []int{4, 5, 8} {
		for hangs := range 2 {
			t.Run(fmt.Sprintf("%d lanes, GPU %d hangs", lanes, hangs), func(t *testing.T) {
				names := []string{"0000:01:00.0", "0000:02:00.0"}
				m := &hungOf{hungMover{until: make(chan struct{})}, names[hangs]}
				peer := openDetached(t)
				f := newFailingRuntime(t, testrig.NewImage(t), func(dev *detached.Runtime) gpu.Runtime { return addressed{dev, names[0]} }, nil, false, softctl.Options{Queues: 32, Mover: m},
					engine.Config{Lanes: 2, CPULanes: lanes, CPU: openHost(t), HostOnCPU: true, HangTimeout: time.Minute, LateAfter: time.Minute, More: []gpu.Runtime{addressed{peer, names[1]}}},
					func(t controller.Transport) controller.Transport { return t })
				f.Soft.SetInjector(nil) // else nothing is lone
				var of [2]*controller.Chunk
				var device sync.WaitGroup
				t.Cleanup(func() { // before the rig's
					close(m.until)
					device.Wait()
					for _, d := range of {
						require.NoError(t, d.Close())
					}
				})
				for i, name := range names {
					mem, err := f.Runtime.Alloc(gpu.HostMapped, size)
					require.NoError(t, err)
					t.Cleanup(func() { require.NoError(t, mem.Close()) })
					of[i], err = f.Controller.Borrow(unseen{placed{mem, gpu.Reach{Owner: gpu.OwnerDevice, Device: name}}})
					require.NoError(t, err)
				}
				read := func(i int) error {
					return f.Engine.Do(engine.AnyLane, []engine.Command{f.RW(nvme.IORead, 0, of[i], 0, size)})
				}
				for i := range callers {
					device.Go(func() {
						if i%2 == 0 && f.Engine.Lone(lone(nvme.IORead, 0, size, of[hangs].IOVA())) || read(hangs) == nil {
							t.Error("a copy that failed has succeeded")
						}
					})
				}
				until(t, "a copy hangs", func() bool { return m.hung.Load() > 0 })
				time.Sleep(20 * time.Millisecond) // the others come to wait, if they have not
				var round atomic.Int64
				device.Go(func() {
					for range 50 {
						if err := read(1 - hangs); err != nil {
							t.Error(err)
						}
						round.Add(1)
					}
				})
				until(t, "reads to the other GPU end", func() bool { return round.Load() == 50 })
			})
		}
	}
}
