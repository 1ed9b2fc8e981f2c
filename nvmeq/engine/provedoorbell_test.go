package engine_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/internal/testrig"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// TestProveDoorbell: a kernel rings the admin doorbell, the answer lands in device memory, and the queue goes on as before.
func TestProveDoorbell(t *testing.T) {
	r := testrig.Open(t, softctl.Options{})
	for range 3 {
		rung, err := engine.ProveDoorbell(r.Controller)
		require.NoError(t, err)
		require.Equal(t, r.Controller.Identify(), rung.Identify)
		require.Equal(t, gpu.DeviceFine, rung.Kind)
		require.NotZero(t, rung.Doorbell)
		require.NotZero(t, rung.IOVA)
		_, err = r.Controller.SMART()
		require.NoError(t, err, "the CPU rings again")
	}
}
