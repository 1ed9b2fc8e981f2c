package engine_test

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/gputest/detached"
	"github.com/lanefs/lanefs/gpu/host"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/internal/testrig"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// kinds notes which memory is asked for.
type kinds struct {
	gpu.Runtime
	asked map[gpu.MemKind]int
}

func (k kinds) Alloc(kind gpu.MemKind, size int64) (gpu.Memory, error) {
	k.asked[kind]++
	return k.Runtime.Alloc(kind, size)
}

// TestLaneMemory: in every mode the lanes of a device keep what they alone touch in its memory, of the kind that every device
// has; a CPU's in host memory.
func TestLaneMemory(t *testing.T) {
	for _, callerDriven := range []bool{true, false} {
		for mode := range controller.MemoryMode(4) {
			t.Run(fmt.Sprintf("mode %d, caller-driven %t", mode, callerDriven), func(t *testing.T) {
				var rt gpu.Runtime
				var err error
				want := 1
				if callerDriven {
					rt, err = host.Open(host.Options{})
					want = 0
				} else {
					rt, err = detached.New(false)
				}
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, rt.Close()) })
				soft, err := softctl.Open(testrig.NewImage(t), testrig.Served(t, rt, softctl.Options{Log: slog.New(slog.DiscardHandler)}))
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, soft.Close()) })
				k := kinds{rt, map[gpu.MemKind]int{}}
				place, err := mode.Placement()
				require.NoError(t, err)
				c, err := controller.Open(controller.Config{Runtime: k, Transport: soft, Placement: place, Log: slog.New(slog.DiscardHandler)})
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, c.Close()) })
				_, err = engine.New(c, engine.Config{Lanes: 1})
				require.NoError(t, err)
				require.Equal(t, want, k.asked[gpu.DevicePlain])
			})
		}
	}
}

// slowBAR is a device's memory whose BAR shows the CPU other bytes than the device has: what is stored there is on its way for ever.
type slowBAR struct {
	gpu.Memory
	view []byte
}

func (m slowBAR) Host() []byte     { return m.view }
func (m slowBAR) Reach() gpu.Reach { return gpu.Reach{Owner: gpu.OwnerDevice} }

// TestLaneMemoryByDevice: what a lane finds in the device's memory was written by the device, whatever view of it the CPU has.
func TestLaneMemoryByDevice(t *testing.T) {
	_, cfg, _ := testrig.Intercept(t, softctl.Options{})
	rt := cfg.Runtime
	cfg.Timeout, cfg.Placement = 0, controller.Placement{Lane: gpu.DevicePlain}
	cfg.Runtime = &wrongMemory{Runtime: rt, alloc: func(kind gpu.MemKind, n int64) (gpu.Memory, error) {
		m, err := rt.Alloc(kind, n)
		return slowBAR{m, make([]byte, n)}, err
	}}
	c, err := controller.Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	e, err := engine.New(c, engine.Config{Lanes: 2, Team: testrig.Team(t)})
	require.NoError(t, err)
	r := &rig{Rig: &testrig.Rig{Runtime: cfg.Runtime, Controller: c, Engine: e, Soft: cfg.Transport.(*testrig.Intercepted).Controller, Block: 512}}
	r.roundTrip(t)
}
