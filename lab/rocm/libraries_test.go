package rocm_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu/gputest"
	"github.com/lanefs/lanefs/lab/rocm"
)

// AMD's real libraries without a device give one line: that no GPU can be used, or that ROCm is too old.
func TestROCmLibraries(t *testing.T) {
	if _, err := os.Stat("/dev/kfd"); err == nil {
		t.Skip("this machine has an AMD GPU: see TestRuntime with LANEFS_SHIM=none")
	}
	for version, want := range map[string]string{
		"5.2.3": "open: hip runtime: this is ROCm 5.2, LaneFS's kernels need 6.0: update ROCm, or use --gpu host\n",
		"6.4.3": "open: hip runtime: ROCm 6.4 is there, but no GPU can be used: hipInit: no ROCm-capable device is detected (hipErrorNoDevice, 100); /dev/kfd is not there",
	} {
		t.Run(version, func(t *testing.T) {
			r := rocm.Debian(t, version)
			// Debian's own loader and libc: the libraries may need a newer one than this machine's.
			loader := filepath.Join(r.Dir, "usr/lib64/ld-linux-x86-64.so.2")
			if _, err := os.Stat(loader); err != nil {
				loader = filepath.Join(r.Dir, "lib64/ld-linux-x86-64.so.2")
			}
			path := filepath.Join(r.Dir, "lib/x86_64-linux-gnu") + ":" + r.Lib("")
			said := gputest.Child(t, "^TestReport$", environ("LANEFS_SHIM=none"), loader, "--library-path", path)
			require.Contains(t, said, want)
		})
	}
}
