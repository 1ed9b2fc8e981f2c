package rocm_test

import (
	"bytes"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/gputest"
	"github.com/lanefs/lanefs/lab/rocm"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// driven is a software controller that has device memory as a drive has it: what is behind its DMA-BUF, and not what kernels see.
type driven struct {
	*softctl.Controller
	t *testing.T
}

type inMemory struct {
	gpu.Memory
	b []byte
}

func (m inMemory) Host() []byte { return m.b }

func (d driven) Map(m gpu.Memory, off, n int64) (nvme.IOVA, error) {
	if m.Kind().Device() {
		e, err := m.Export(gpu.ExportDMABUF)
		require.NoError(d.t, err)
		b, err := unix.Mmap(e.FD, 0, int(e.Offset+m.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		require.NoError(d.t, err)
		require.NoError(d.t, unix.Close(e.FD))
		d.t.Cleanup(func() { unix.Munmap(b) })
		m = inMemory{m, b[e.Offset:]}
	}
	return d.Controller.Map(m, off, n)
}

// Names of environment variables: the kernels for TestCopiesLanesRun.
const copiesImage = "LANEFS_TEST_IMAGE"

// TestCopiesLanesRun prints how commands end of resident lanes with their queues in device memory.
func TestCopiesLanesRun(t *testing.T) {
	gputest.Reporting(t)
	image, err := os.ReadFile(os.Getenv(copiesImage))
	require.NoError(t, err)
	rt := device(t)
	if strings.HasPrefix(rt.Facts().Arch, "sm_") {
		t.Skip("over CUDA, whose memory is one")
	}
	path := filepath.Join(t.TempDir(), "image")
	content := make([]byte, 4<<20)
	for i := range content {
		content[i] = byte(i >> 9 * 7)
	}
	require.NoError(t, os.WriteFile(path, content, 0o600))
	soft, err := softctl.Open(path, softctl.Options{Log: slog.New(slog.DiscardHandler), Threads: 1, Queues: 1})
	require.NoError(t, err)
	cfg := controller.Config{Runtime: rt, Transport: driven{soft, t}, Log: slog.New(slog.DiscardHandler)}
	cfg.Placement, err = (controller.ModeSQ | controller.ModeCQ).Placement()
	require.NoError(t, err)
	c, err := controller.Open(cfg)
	require.NoError(t, err)
	e, err := engine.New(c, engine.Config{Lanes: 1, Depth: 8, Image: image, Timeout: 2 * time.Second, Retries: -1})
	require.NoError(t, err)
	data, err := c.AllocData(64 << 10)
	require.NoError(t, err)
	wrong := 0
	for turn := range 8 { // the queues wrap
		cmds := make([]engine.Command, 5)
		for i := range cmds {
			cmds[i] = engine.Command{Op: nvme.IORead, NSID: 1, SLBA: uint64(turn*5 + i*7), NLB: 8, Data: data.IOVA() + nvme.IOVA(i*4096), Len: 4096}
		}
		clear(data.Bytes())
		err := e.Do(0, cmds)
		for i := range cmds {
			if at := cmds[i].SLBA * 512; err != nil || !bytes.Equal(data.Bytes()[i*4096:][:4096], content[at:][:4096]) {
				wrong++
			}
		}
		if err != nil {
			t.Logf("error: %v", err)
			break
		}
	}
	t.Logf("wrong commands: %d", wrong)
	if wrong > 0 {
		return // with what is amiss, nothing ends as it should
	}
	for _, c := range []interface{ Close() error }{data, e, c, soft, rt} {
		require.NoError(t, c.Close())
	}
}

// TestCopiesLanes: resident lanes work with their queues in device memory that has two copies, L2's and memory's, by the releases, and the accesses
// past L2, that their source has. Without the release commands do not arrive; a poll of L2 sees a completion only once something else invalidates
// that, and the shim says that the poll was stale. The kernels are the host's, with calls at their accesses, which the shim has.
func TestCopiesLanes(t *testing.T) {
	needShim(t)
	if runtime.GOARCH != "amd64" {
		t.Skip("the host's kernels are for x86-64")
	}
	clang, err := exec.LookPath("clang-19")
	if err != nil {
		t.Skip("clang-19 is missing: apt-get install clang-19 lld-19")
	}
	for _, tc := range []struct{ name, file, right, wrong string }{
		{"as they are", "", "", ""},
		{"no release", "step.h", "\t\trelease();\n\ttrace.released", "\t\t;\n\ttrace.released"},
		{"polls of L2", "nvme_qp.h", "return __scoped_atomic_load_n(p, __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM);", "return *(const volatile T *)p;"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			image := hooked(t, clang, tc.file, tc.right, tc.wrong)
			said := child(t, "^TestCopiesLanesRun$", "LANEFS_SHIM_COPIES=direct", copiesImage+"="+image)
			if strings.Contains(said, "--- SKIP") {
				t.Skip("over CUDA, whose memory is one")
			}
			require.Equal(t, tc.file == "", strings.Contains(said, "wrong commands: 0") && !strings.Contains(said, "stale in L2"), "%s", said)
			if tc.name == "no release" {
				require.Contains(t, said, "wrong commands: ")
				require.Contains(t, child(t, "^TestCopiesLanesRun$", copiesImage+"="+image), "wrong commands: 0", "with one copy nothing shows it")
			}
		})
	}
}

// hooked builds the host's kernels with calls in place of their atomic accesses and fences, after a change of a source.
func hooked(t *testing.T, clang, file, right, wrong string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS("../../kernels")))
	if file != "" {
		b, err := os.ReadFile(filepath.Join(dir, file))
		require.NoError(t, err)
		require.Equal(t, 1, strings.Count(string(b), right), "%s has changed", file)
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(strings.Replace(string(b), right, wrong, 1)), 0o600))
	}
	image := filepath.Join(dir, "hooked.so")
	require.NoError(t, rocm.Hooked(clang, dir, image))
	return image
}
