// Package cuda builds a stand-in for NVIDIA's libcuda.so.1, for tests of what links to the driver API; src/cuda.c documents it. It is no
// part of LaneFS's binary, and runs no lanes: lab/rocm is the stand-in for that.
package cuda

import (
	"embed"
	"path/filepath"
	"slices"

	"github.com/lanefs/lanefs/lab/made"
)

//go:embed src
var sources embed.FS

// Build compiles the stand-in, once for all tests (package made), and copies it into dir, which a program's LD_LIBRARY_PATH then names; flags are more of the compiler's. It gives the
// path of the library.
func Build(cc, dir string, flags ...string) (string, error) {
	lib := filepath.Join(dir, "libcuda.so.1")
	return lib, made.Of(sources, lib, cc, slices.Concat(flags, []string{"-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden", "src/cuda.c", "-lpthread"})...)
}
