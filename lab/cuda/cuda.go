// Package cuda builds a stand-in for NVIDIA's libcuda.so.1, for tests of what links to the driver API; src/cuda.c documents it. It is no
// part of LaneFS's binary, and runs no lanes: lab/rocm is the stand-in for that.
package cuda

import (
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

//go:embed src
var sources embed.FS

// Build compiles the stand-in into dir, which a program's LD_LIBRARY_PATH then names; flags are more of the compiler's. It gives the path of the library.
func Build(cc, dir string, flags ...string) (string, error) {
	if err := os.CopyFS(dir, sources); err != nil {
		return "", err
	}
	lib := filepath.Join(dir, "libcuda.so.1")
	out, err := exec.Command(cc, append(flags, "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden", "-o", lib,
		filepath.Join(dir, "src", "cuda.c"), "-lpthread")...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", cc, err, out)
	}
	return lib, nil
}
