package rocm_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/gputest"
	"github.com/lanefs/lanefs/gpu/hip"
	"github.com/lanefs/lanefs/lab/rocm"
)

// TestReport prints what a child process finds.
func TestReport(t *testing.T) {
	gputest.Reporting(t)
	r, err := hip.Open(hip.Options{})
	if err != nil {
		t.Logf("open: %v", err)
		return
	}
	defer r.Close()
	t.Logf("facts: %+v", r.Facts())
	for _, m := range r.Missing() {
		t.Logf("missing: %s", m)
	}
	_, err = r.Alloc(gpu.DeviceFine, 4096)
	t.Logf("fine: %v", err)
	s, err := r.NewStream()
	require.NoError(t, err)
	t.Logf("wait: %v", s.Wait(time.Minute))
}

// child is gputest.Child with variables set, on this process's shim unless they name another.
func child(t *testing.T, run string, env ...string) string {
	t.Helper()
	if !slices.ContainsFunc(env, func(s string) bool {
		return strings.HasPrefix(s, "LANEFS_SHIM_ROCM=") || strings.HasPrefix(s, "LANEFS_SHIM=")
	}) {
		env = append(env, "LANEFS_SHIM="+rocm.Dir())
	}
	return gputest.Child(t, run, environ(env...))
}

// environ is this process's environment with variables set, without its choice of a shim.
func environ(env ...string) []string {
	return append(slices.DeleteFunc(os.Environ(), func(s string) bool {
		return strings.HasPrefix(s, "LANEFS_SHIM") || strings.HasPrefix(s, "LD_LIBRARY_PATH=")
	}), env...)
}

func needShim(t *testing.T) {
	t.Helper()
	if !rocm.Used() {
		t.Skip("this test needs the shim, and that gcc: apt-get install gcc libc6-dev")
	}
}

// What a machine lacks is reported in one line each, and what it has works.
func TestVariants(t *testing.T) {
	needShim(t)
	for _, c := range []struct {
		name string
		env  []string
		want []string
		not  string
	}{
		{"ROCm 7.1", nil, []string{"facts: ", "fine: <nil>", "wait: <nil>"}, "missing: "},
		{"ROCm 6.4", []string{"LANEFS_SHIM_ROCM=6.4"},
			[]string{"missing: hsa_amd_portable_export_dmabuf_v2: needs ROCm 7.1, found 6.4; using v1\n"}, "open: "},
		{"ROCm 5.2", []string{"LANEFS_SHIM_ROCM=5.2"},
			[]string{"open: hip runtime: this is ROCm 5.2, LaneFS's kernels need 6.0: update ROCm, or use --gpu host\n"}, "facts: "},
		{"no device", []string{"LANEFS_SHIM_DEVICES=0"},
			[]string{"open: hip runtime: ROCm 7.1 is there, but no GPU can be used: hipInit: no ROCm-capable device is detected (hipErrorNoDevice, 100)"}, "facts: "},
		{"no VMM", []string{"LANEFS_SHIM_NO_VMM=1"},
			[]string{" has no virtual memory management with ROCm 7.1: device memory does not grow, and is shared by DMA-BUFs or IPC handles\n"}, "open: "},
		{"a Radeon", []string{"LANEFS_SHIM_ARCH=gfx1100"},
			[]string{"missing: gfx1100, a Radeon, has fine-grained device memory only with HSA_FORCE_FINE_GRAIN_PCIE=1 in the environment of lanefs\n",
				"fine: hip runtime: 4096 bytes of device-fine memory: hipExtMallocWithFlags: invalid argument (hipErrorInvalidValue, 1) (gfx1100, a Radeon"}, "open: "},
		{"a Radeon that is told", []string{"LANEFS_SHIM_ARCH=gfx1100", "HSA_FORCE_FINE_GRAIN_PCIE=1"}, []string{"fine: <nil>"}, "missing: "},
		{"a lost device", []string{"LANEFS_SHIM_LOST=1"},
			[]string{"wait: hip runtime: a kernel or copy: unspecified launch failure (hipErrorLaunchFailure, 719); the GPU is lost to this process"}, "open: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := child(t, "^TestReport$", c.env...)
			for _, want := range c.want {
				require.Contains(t, out, want)
			}
			require.NotContains(t, out, c.not)
		})
	}
}

// The suite on a device without VMM, which shares by IPC handles, and on an older ROCm, which imports descriptors by
// address and exports DMA-BUFs by v1.
func TestRuntimeVariants(t *testing.T) {
	needShim(t)
	for name, env := range map[string]string{"no VMM": "LANEFS_SHIM_NO_VMM=1", "ROCm 6.4": "LANEFS_SHIM_ROCM=6.4"} {
		t.Run(name, func(t *testing.T) {
			out := child(t, "^TestRuntime$", env)
			require.Contains(t, out, "--- PASS: TestRuntime/Share")
			require.Equal(t, name == "no VMM", strings.Contains(out, "--- SKIP: TestRuntime/Range"))
		})
	}
}

// Without the shim the error is one line: the libraries are missing, too old, or without a device.
func TestAbsent(t *testing.T) {
	out := child(t, "^TestReport$", "LANEFS_SHIM=none")
	if strings.Contains(out, "facts: ") {
		t.Skip("this machine has an AMD GPU")
	}
	require.Regexp(t, `open: hip runtime: (AMD's ROCm is not on this machine: libamdhip64\.so\.7: not installed; install it, or use --gpu host`+
		`|this is ROCm [0-9.]+, LaneFS's kernels need 6\.0: update ROCm, or use --gpu host|ROCm [0-9.]+ is there, but no GPU can be used: .*)\n`, out)
}

func TestDeviceNumber(t *testing.T) {
	gputest.Keep(t, device)
	_, err := hip.Open(hip.Options{Device: "99"})
	require.ErrorContains(t, err, "hip runtime: device 99 does not exist: ROCm shows ")
}

// The sender of an IPC handle may send any bytes.
func TestHostileIPC(t *testing.T) {
	r := device(t)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	m, err := r.Alloc(gpu.DevicePlain, 8192)
	require.NoError(t, err)
	e, err := m.Export(gpu.ExportIPC)
	require.NoError(t, err)
	f := os.NewFile(uintptr(e.FD), "export")
	defer f.Close()
	for _, bad := range []gpu.Export{
		{Offset: 4096, Size: 8192}, {Offset: -4096, Size: 4096}, {Offset: 1 << 40, Size: 4096}, {Offset: 1<<63 - 1, Size: 4096}, {Size: 1 << 40},
	} {
		bad.FD, bad.Kind = e.FD, gpu.ExportIPC
		_, err := r.Import(bad)
		require.Error(t, err, "%+v", bad)
	}
	good := e
	good.Offset, good.Size = 4096, 4096
	i, err := r.Import(good)
	require.NoError(t, err)
	require.NoError(t, i.Close())
	message := make([]byte, 48) // a magic number, the bytes of the allocation, HSA's handle
	_, err = f.ReadAt(message, 0)
	require.NoError(t, err)
	magic, none := message[:8], make([]byte, 8)
	size := func(n uint64) []byte { return binary.NativeEndian.AppendUint64(nil, n) }
	for _, head := range [][][]byte{{none, none}, {magic, none}, {magic, size(1 << 50)}, {magic, size(8192)}} {
		fd, err := unix.MemfdCreate("message", unix.MFD_CLOEXEC)
		require.NoError(t, err)
		bad := os.NewFile(uintptr(fd), "message")
		_, err = bad.Write(append(bytes.Join(head, nil), make([]byte, 32)...))
		require.NoError(t, err)
		_, err = r.Import(gpu.Export{FD: fd, Size: 4096, Kind: gpu.ExportIPC})
		require.Error(t, err, "%x", head)
		require.NoError(t, bad.Close())
	}
	require.NoError(t, m.Close())
}
