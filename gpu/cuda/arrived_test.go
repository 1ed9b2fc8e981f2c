package cuda

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu/internal/driver"
	"github.com/lanefs/lanefs/gpu/internal/dynlib"
)

const arrivedEnv = "LANEFS_TEST_ARRIVED"

// TestArrived: what a drive wrote into a GPU's memory is flushed by the driver's call, unless the device orders such writes for itself; a device
// that neither orders them nor can flush them says so. The numbers here are cuda.h's, not abi.go's.
func TestArrived(t *testing.T) {
	if os.Getenv(arrivedEnv) != "" {
		fmt.Println(arrivedChild())
		os.Exit(0)
	}
	dir := standIn(t)
	const options, ordering = "117", "118" // GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, GPU_DIRECT_RDMA_WRITES_ORDERING
	for _, c := range []struct{ attributes, says string }{
		{options + "=1," + ordering + "=0", "flushed 1 times: <nil>"},   // OPTION_HOST, ORDERING_NONE
		{options + "=3," + ordering + "=0", "flushed 1 times: <nil>"},   // OPTION_MEMOPS besides
		{options + "=1," + ordering + "=100", "needs no flush"},         // ORDERING_OWNER
		{options + "=1," + ordering + "=200", "needs no flush"},         // ORDERING_ALL_DEVICES
		{options + "=2," + ordering + "=0", "flushed 0 times: neither"}, // by stream operations only
		{"", "flushed 0 times: neither orders the GPU such writes, nor can its driver flush them"},
	} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestArrived$")
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, arrivedEnv+"=1", "LANEFS_FAKE_CUDA_ATTRIBUTES="+c.attributes)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), c.says, "%+v", c)
	}
}

// arrivedChild is the test in a process that has the stand-in.
func arrivedChild() string {
	l, err := open()
	if err != nil {
		return err.Error()
	}
	var current uintptr
	var calls driver.Call
	if err := l.lib.Bind("the stand-in", []dynlib.Symbol{calls.Required("fake_cuda_calls")}); err != nil {
		return err.Error()
	}
	if err := l.Early(l.primaryCtxRetain, uintptr(unsafe.Pointer(&current)), 0); err != nil {
		return err.Error()
	}
	f := l.arrived(0)
	if f == nil {
		return "needs no flush"
	}
	err = f(driver.New(driver.Config{API: &l.API, Current: current}))
	name := []byte("cuFlushGPUDirectRDMAWrites\x00")
	return fmt.Sprintf("flushed %d times: %v", driver.Raw(calls, uintptr(unsafe.Pointer(&name[0]))), err)
}
