package hip

import (
	"fmt"
	"os"
	"testing"

	"github.com/lanefs/lanefs/gpu/hip/shim"
)

// TestMain runs the tests on the shim over plain memory, unless LANEFS_SHIM says otherwise (see gpu/hip/shim): there is no
// AMD GPU on the machines that run them. LANEFS_SHIM=none is the machine's own ROCm.
func TestMain(m *testing.M) {
	if err := shim.Use(); err != nil {
		fmt.Fprintln(os.Stderr, "gpu/hip: without the shim:", err)
	}
	code := m.Run()
	if err := shim.Clean(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}
