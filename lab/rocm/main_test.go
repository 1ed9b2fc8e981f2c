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
		// Under the race detector os.Exit calls C's exit, and destructors of ROCm 6.4.3 crash there half of the time. The
		// product is built without C, so exit by the system call as it does.
		syscall.Exit(code)
	}
	os.Exit(code)
}
