// Package rocm builds a shim for AMD's ROCm, a libamdhip64 and a libhsa-runtime64 for tests, and puts it on the loader's path.
// src/shim.c documents it. It is no part of LaneFS's binary. The tests of gpu/hip that run on the shim are here.
//
// Environment: LANEFS_SHIM is "cpu" (also when it is not set), "cuda", "none" for no shim, or the folder of one built
// elsewhere. LANEFS_SHIM_ROCM is the version of ROCm that the shim has, "7.1" or "6.4".
package rocm

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/lanefs/lanefs/lab/made"
)

//go:embed src
var sources embed.FS

// sonames are what gpu/hip opens.
var sonames = []string{"libamdhip64.so.7", "libamdhip64.so.6", "libhsa-runtime64.so.1"}

// inside is set in a process whose loader has the shim on its path; its value is the shim's folder.
const inside = "LANEFS_SHIM_INSIDE"

// built is set if Use built the folder for this process.
const built = "LANEFS_SHIM_BUILT"

// Use executes the calling program again with the shim on the loader's path, which the loader reads only at the start. It
// returns in a process that has the shim or shall have none, and returns an error if the shim could not be built. Call it
// before anything else.
func Use() error {
	backend := os.Getenv("LANEFS_SHIM")
	if Used() || backend == "none" {
		return nil
	}
	env := os.Environ()
	dir := backend
	if backend == "" || backend == "cpu" || backend == "cuda" {
		var err error
		if dir, err = build(cmp.Or(backend, "cpu")); err != nil {
			return err
		}
		env = append(env, built+"=1")
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	env = append(env, inside+"="+dir, "LD_LIBRARY_PATH="+dir+":"+os.Getenv("LD_LIBRARY_PATH"))
	return syscall.Exec(self, os.Args, env)
}

// Used reports whether this process has the shim.
func Used() bool { return Dir() != "" }

// Dir is the folder of this process's shim: what LANEFS_SHIM takes.
func Dir() string { return os.Getenv(inside) }

// Clean removes what Use built for this process.
func Clean() error {
	if os.Getenv(built) == "" {
		return nil
	}
	return os.RemoveAll(Dir())
}

// build compiles the shim into a new folder.
func build(backend string) (dir string, err error) {
	cc, err := exec.LookPath("gcc")
	if err != nil {
		return "", errors.New("the shim needs gcc: apt-get install gcc libc6-dev")
	}
	if dir, err = os.MkdirTemp("", "lanefs-shim-"); err != nil {
		return "", err
	}
	if err := Build(cc, backend, os.Getenv("LANEFS_SHIM_ROCM"), dir); err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	return dir, nil
}

// Build compiles the shim over backend, "cpu" or "cuda", with the given version of ROCm ("" is 7.1), once for all tests (package made), and copies it into dir.
func Build(cc, backend, rocm, dir string) error {
	version := map[string]string{"": "70100000", "7.1": "70100000", "6.4": "60400000", "5.2": "50200000"}[rocm]
	if version == "" {
		return fmt.Errorf("the shim has the versions 7.1, 6.4 and 5.2 of ROCm, not %q", rocm)
	}
	err := made.Of(sources, filepath.Join(dir, sonames[0]), cc, "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden", "-DSHIM_VERSION="+version,
		"src/shim.c", "src/backend_"+backend+".c", "-lpthread", "-ldl")
	if err != nil {
		return err
	}
	for _, name := range sonames[1:] {
		if err := os.Symlink(sonames[0], filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}
