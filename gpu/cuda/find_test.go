package cuda

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const findEnv = "LANEFS_TEST_FIND"

// TestFind: a device is found by its ordinal, UUID and address among those that CUDA_VISIBLE_DEVICES leaves, and so is a MIG instance, which a
// process sees only if that variable names it. The stand-in for libcuda has no memory for lanes, and its refusal says which device was asked.
func TestFind(t *testing.T) {
	if which, child := os.LookupEnv(findEnv); child {
		_, err := Open(Options{Device: which})
		fmt.Println(err)
		os.Exit(0)
	}
	dir := standIn(t)
	const gpus = "GPU-11111111-2222-3333-4444-555555555555@0000:01:00.0,GPU-66666666-2222-3333-4444-555555555555@0000:c1:00.0"
	const migs = "MIG-77777777-2222-3333-4444-555555555555@0000:01:00.0,MIG-88888888-2222-3333-4444-555555555555@0000:01:00.0"
	chosen := func(first8 string) string {
		return "cuda runtime: LaneFS stand-in " + first8 + " has no virtual memory management"
	}
	for _, c := range []struct{ which, devices, visible, says string }{
		{"", gpus, "", chosen("11111111")},
		{"1", gpus, "", chosen("66666666")},
		{"GPU-6", gpus, "", chosen("66666666")},
		{"gpu-66666666-2222-3333-4444-555555555555", gpus, "1,0", chosen("66666666")},
		{"0000:c1:00.0", gpus, "1,0", chosen("66666666")},
		{"C1:00.0", gpus, "GPU-6", chosen("66666666")},
		{"0", gpus, "1,0", chosen("66666666")},
		{"01:00.0", gpus, "1,0", chosen("11111111")},
		{"2", gpus, "", `device 2 does not exist: the driver shows 2 (CUDA_VISIBLE_DEVICES is "")`},
		{"GPU-1", gpus, "1", `no device is "GPU-1"; there are 0: GPU-66666666-2222-3333-4444-555555555555 at 0000:c1:00.0 (CUDA_VISIBLE_DEVICES is "1")`},
		{"GPU-1", gpus, "-1", "no CUDA-capable device"},
		{"MIG-8", migs, "", chosen("88888888")}, // the variable is set to it, so it is the only one
		{"MIG-88888888-2222-3333-4444-555555555555", migs, "MIG-8", chosen("88888888")},
		{"MIG-8", migs, "MIG-7", `no device is "MIG-8"; there are 0: MIG-77777777-2222-3333-4444-555555555555 at 0000:01:00.0 (CUDA_VISIBLE_DEVICES is "MIG-7")`},
	} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestFind$")
		unset := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "CUDA_VISIBLE_DEVICES=") })
		cmd.Env = append(unset, "LD_LIBRARY_PATH="+dir, findEnv+"="+c.which, "LANEFS_FAKE_CUDA="+c.devices)
		if c.visible != "" {
			cmd.Env = append(cmd.Env, "CUDA_VISIBLE_DEVICES="+c.visible)
		}
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), c.says, "%+v", c)
	}
}
