package rocm_test

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/lanefs/lanefs/lab/rocm"
)

// TestMain runs the tests on the shim over plain memory, unless LANEFS_SHIM says otherwise (see package rocm): there is no
// AMD GPU on the machines that run them. LANEFS_SHIM=none is the machine's own ROCm.
func TestMain(m *testing.M) {
	if err := rocm.Use(); err != nil {
		fmt.Fprintln(os.Stderr, "lab/rocm: without the shim:", err)
	}
	code := m.Run()
	if err := rocm.Clean(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if os.Getenv("LANEFS_SHIM") == "none" {
		// Under the race detector os.Exit goes through C's exit, whose destructors in ROCm 6.4.3 crash half of the
		// time. The product is built without C and never goes there; leave as it does.
		syscall.Exit(code)
	}
	os.Exit(code)
}
