package engine_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/gputest/detached"
	"github.com/lanefs/lanefs/gpu/host"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/internal/testrig"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// drive is a software controller as a drive is to the code above: it works by itself, and what does not consist of ordinary
// pages cannot be mapped for it.
type drive struct {
	controller.Transport // without softctl's Step
	rt                   *driversMemory
}

func (d drive) Map(m gpu.Memory, off, n int64) (nvme.IOVA, error) {
	if d.rt.own(m) {
		return 0, fmt.Errorf("%v memory: %w", m.Kind(), unix.EFAULT)
	}
	return d.Transport.Map(m, off, n)
}

// driversMemory is a runtime whose host-mapped memory is a mapping of its driver's own.
type driversMemory struct {
	gpu.Runtime
	mu  sync.Mutex
	all map[gpu.Memory]bool // protected by mu
}

func (r *driversMemory) Alloc(kind gpu.MemKind, n int64) (gpu.Memory, error) {
	m, err := r.Runtime.Alloc(kind, n)
	if err == nil && kind == gpu.HostMapped {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.all[m] = true
	}
	return m, err
}

func (r *driversMemory) own(m gpu.Memory) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[m]
}

const driveQueues = 8

// newDrive opens a controller that is a drive, over a runtime that the test closes, with lanes.
func newDrive(t *testing.T, rt gpu.Runtime, cfg controller.Config, so softctl.Options, ec engine.Config) *rig {
	t.Helper()
	r := &rig{Rig: &testrig.Rig{Runtime: rt, Log: &testrig.LogBuffer{}, Rules: &softctl.Rules{}, Block: 512, Threads: true}}
	so.Log, so.Injector, so.Threads, so.Queues = slog.New(slog.DiscardHandler), r.Rules, 1, driveQueues
	var err error
	r.Soft, err = softctl.Open(testrig.NewImage(t), testrig.Served(t, rt, so))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Soft.Close()) })
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for tick := time.NewTicker(50 * time.Microsecond); ; {
			select {
			case <-over:
				tick.Stop()
				return
			case <-tick.C:
			}
			for qid := range uint16(driveQueues + 1) {
				r.Soft.Step(qid) // the admin queue; the threads of the others are woken
			}
		}
	}()
	t.Cleanup(func() { close(over); <-ended })
	own := &driversMemory{Runtime: rt, all: map[gpu.Memory]bool{}}
	cfg.Runtime, cfg.Transport, cfg.Log = own, drive{r.Soft, own}, slog.New(slog.NewTextHandler(r.Log, nil))
	if rt.Facts().CallerDriven { // the CPU's memory consists of ordinary pages anyway; it shall work with these too
		cfg.Placement = controller.Placement{SQ: gpu.HostPinned, CQ: gpu.HostPinned, Data: gpu.HostPinned, List: gpu.HostPinned, Host: gpu.HostPinned}
	}
	r.Controller, err = controller.Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		r.Controller.Close()
		if t.Failed() {
			t.Log(r.Log.String())
		}
	})
	require.False(t, r.Controller.Simulated())
	ec.Team = testrig.Team(t)
	r.Engine, err = engine.New(r.Controller, ec)
	require.NoError(t, err)
	return r
}

// TestPages: a drive reaches ordinary pages only, whatever it is asked to do, and that is all that it is given.
func TestPages(t *testing.T) {
	runtimes := map[string]func() (gpu.Runtime, error){
		"detached": func() (gpu.Runtime, error) { return detached.New(false) },
		"own":      testrig.Runtime,
	}
	for name, open := range runtimes {
		for _, ec := range []engine.Config{{Lanes: 2}, {Lanes: 2, Batch: true}, {Lanes: 1, Doorbell: engine.DoorbellBridge}} {
			t.Run(fmt.Sprintf("%s %d %v batch=%v", name, ec.Lanes, ec.Doorbell, ec.Batch), func(t *testing.T) {
				rt, err := open()
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, rt.Close(), "the runtime finds leaks") })
				r := newDrive(t, rt, controller.Config{}, softctl.Options{}, ec)
				require.Equal(t, gpu.HostPinned, r.Chunk(t, 4096).Memory().Kind())
				r.roundTrip(t)
				r.commands(t)
				require.NoError(t, r.Controller.Reset())
				r.roundTrip(t)
				require.NoError(t, engine.Prove(r.Controller, engine.Config{Team: testrig.Team(t), Doorbell: ec.Doorbell}, 1))
				ring, err := engine.ProveDoorbell(r.Controller)
				require.NoError(t, err)
				require.Equal(t, r.Controller.Identify(), ring.Identify)
				_, err = r.Controller.SMART()
				require.NoError(t, err)
			})
		}
	}
}

// The same with HIP's calls, over the stand-in for ROCm.
func TestPagesHIP(t *testing.T) {
	if os.Getenv("LANEFS_TEST_GPU") != "" {
		t.Skip("all tests of this process run on " + os.Getenv("LANEFS_TEST_GPU"))
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("the stand-in for ROCm needs gcc: apt-get install gcc libc6-dev")
	}
	self, err := os.Executable()
	require.NoError(t, err)
	c := exec.Command(self, "-test.v", "-test.run", "^TestPages$/^own")
	c.Env = append(os.Environ(), "LANEFS_TEST_GPU=hip", "LANEFS_SHIM=cpu")
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: TestPages/own_2_auto_batch=false")
}

// A drive whose GPU fails goes on with the CPU's memory, and with the data where it was.
func TestPagesFailover(t *testing.T) {
	dev, err := detached.New(true)
	require.NoError(t, err)
	t.Cleanup(dev.Resume) // it is not closed: see newFailing
	cfg := controller.Config{Spare: func() (gpu.Runtime, error) { return host.Open(host.Options{}) }}
	r := newDrive(t, dev, cfg, softctl.Options{}, engine.Config{Lanes: 2})
	r.roundTrip(t)
	c := r.Chunk(t, 4096)
	dev.Refuse()
	require.NoError(t, r.Engine.Do(0, []engine.Command{r.RW(nvme.IORead, 0, c, 0, 4096)}))
	require.NotNil(t, r.Controller.Failover())
	r.roundTrip(t)
	require.Equal(t, gpu.HostMapped, r.Chunk(t, 4096).Memory().Kind(), "of the host runtime, which has no driver")
}

// What is not ordinary pages is refused with its kind, and nothing is left of the attempt.
func TestPagesRefused(t *testing.T) {
	rt, err := host.Open(host.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, rt.Close(), "the runtime finds leaks") }()
	soft, err := softctl.Open(testrig.NewImage(t), softctl.Options{Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer func() { require.NoError(t, soft.Close()) }()
	own := &driversMemory{Runtime: rt, all: map[gpu.Memory]bool{}}
	_, err = controller.Open(controller.Config{Runtime: own, Transport: drive{soft, own}, Log: slog.New(slog.DiscardHandler)})
	require.True(t, errors.Is(err, unix.EFAULT))
	require.ErrorContains(t, err, "bytes of host-mapped memory for ")
}
