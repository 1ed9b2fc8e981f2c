package engine_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/internal/testrig"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// TestMemoryModes: device memory of the host runtime is memfds; queues and data work there too.
func TestMemoryModes(t *testing.T) {
	for mode := range controller.MemoryMode(16) {
		_, cfg, _ := testrig.Intercept(t, softctl.Options{})
		var err error
		cfg.Placement, err = mode.Placement()
		require.NoError(t, err)
		c, err := controller.Open(cfg)
		require.NoError(t, err)
		e, err := engine.New(c, engine.Config{Lanes: 2})
		if mode&controller.ModeDoorbell != 0 && !cfg.Runtime.Facts().LargeBAR {
			require.ErrorContains(t, err, "gives the CPU no view of device-uncached memory, from which the bridge would forward doorbells")
			require.NoError(t, c.Close())
			continue
		}
		require.NoError(t, err)
		route, why := e.Doorbells()
		if mode&controller.ModeDoorbell != 0 {
			require.Equal(t, engine.DoorbellBridge, route)
			require.ErrorContains(t, why, "the memory mode puts them in device memory")
			_, err := engine.New(c, engine.Config{Lanes: 1, Doorbell: engine.DoorbellBAR})
			require.ErrorContains(t, err, "doorbells are either in the BAR (iomem) or in device memory (memory mode bit 2), which takes the bridge")
		} else {
			require.Equal(t, engine.DoorbellBAR, route)
			require.NoError(t, why)
		}
		r := &rig{Rig: &testrig.Rig{Controller: c, Engine: e, Soft: cfg.Transport.(*testrig.Intercepted).Controller, Block: 512}}
		t.Run(fmt.Sprint(mode), r.roundTrip)
		require.NoError(t, c.Close())
	}
}
