package cuda

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu/gputest"
)

// TestReport says what a child of TestVariants finds.
func TestReport(t *testing.T) {
	gputest.Reporting(t)
	_, err := Open(Options{})
	t.Logf("open: %v", err)
}

// What is wrong with a driver is said in one line: too old, without a GPU, or without a call that is needed. The drivers are
// libraries of our own that answer what is asked before a device is opened.
func TestVariants(t *testing.T) {
	cc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("this test needs gcc: apt-get install gcc libc6-dev")
	}
	for name, c := range map[string]struct {
		version, init int
		without       string
		want          string
	}{
		"old": {version: 10020, want: "cuda runtime: the driver supports CUDA 10.2, LaneFS's kernels need 11.0: update the driver, or use --gpu host\n"},
		"no device": {version: 13000, init: 100,
			want: "cuda runtime: the driver is there, but no GPU can be used: cuInit: words for 100 (CUDA_ERROR_100, 100)\n"},
		"lacking a call": {version: 13000, without: "cuMemCreate",
			want: "cuda runtime: libcuda.so.1 (CUDA 13.0) has no cuMemCreate: it is too old, or not the library it seems to be\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var src strings.Builder
			fmt.Fprintf(&src, `#include <stdio.h>
int cuDriverGetVersion(int *v) { *v = %d; return 0; }
int cuInit(unsigned flags) { return flags ? 1 : %d; }
static char said[64];
int cuGetErrorName(int code, const char **s) { snprintf(said, sizeof said, "CUDA_ERROR_%%d", code); *s = said; return 0; }
static char words[64];
int cuGetErrorString(int code, const char **s) { snprintf(words, sizeof words, "words for %%d", code); *s = words; return 0; }
`, c.version, c.init)
			for _, s := range (&library{}).symbols() {
				if s.Name != c.without {
					fmt.Fprintf(&src, "int %s(void) { return 999; }\n", s.Name)
				}
			}
			dir := t.TempDir()
			file := filepath.Join(dir, "driver.c")
			require.NoError(t, os.WriteFile(file, []byte(src.String()), 0o600))
			out, err := exec.Command(cc, "-shared", "-fPIC", "-o", filepath.Join(dir, "libcuda.so.1"), file).CombinedOutput()
			require.NoError(t, err, "%s", out)
			said := gputest.Child(t, "^TestReport$", append(os.Environ(), "LD_LIBRARY_PATH="+dir))
			require.Contains(t, said, "open: cuda runtime: ")
			require.Contains(t, said, c.want)
		})
	}
}
