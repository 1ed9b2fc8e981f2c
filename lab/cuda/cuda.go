// Package cuda builds a stand-in for NVIDIA's libcuda.so.1, for tests of what links to the driver API; src/cuda.c documents it. It is no
// part of LaneFS's binary, and runs no lanes: lab/rocm is the stand-in for that.
package cuda

import (
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/lanefs/lanefs/lab/made"
)

//go:embed src
var sources embed.FS

const soname = "libcuda.so.1"

// Build compiles the stand-in, once for all tests (package made), and copies it into dir, which a program's LD_LIBRARY_PATH then names; flags are more of the compiler's. It gives the
// path of the library.
func Build(cc, dir string, flags ...string) (string, error) {
	source, err := sources.ReadFile("src/cuda.c")
	if err != nil {
		return "", err
	}
	args := append(flags[:len(flags):len(flags)], "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden")
	key, err := made.Key([]string{cc}, append(args, string(source))...)
	if err != nil {
		return "", err
	}
	from, err := made.In(key, func(dir string) error {
		if err := os.CopyFS(dir, sources); err != nil {
			return err
		}
		out, err := exec.Command(cc, append(args, "-o", filepath.Join(dir, soname), filepath.Join(dir, "src", "cuda.c"), "-lpthread")...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w: %s", cc, err, out)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	lib := filepath.Join(dir, soname)
	return lib, made.Copy(filepath.Join(from, soname), lib)
}
