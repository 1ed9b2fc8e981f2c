package lanefs_test

import (
	"go/build"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestImports: a program that imports the SDK gets the protocol and the interface of GPU runtimes, and no kernels and nothing else of the
// daemon.
func TestImports(t *testing.T) {
	const module = "github.com/lanefs/lanefs/"
	allowed := map[string]bool{"fs/share/wire": true, "gpu": true, "gpu/memfd": true}
	dirs := []string{"."} // without device: purego has what imports it linked to libc
	for path := range allowed {
		dirs = append(dirs, "../../"+path)
	}
	for _, dir := range dirs {
		p, err := build.ImportDir(dir, 0)
		require.NoError(t, err)
		for _, path := range p.Imports {
			if own, ok := strings.CutPrefix(path, module); ok {
				require.True(t, allowed[own], "%s imports %s", dir, path)
			}
			require.NotContains(t, path, "purego", "a program of %s would be linked to libc", dir)
		}
	}
}

// TestModule: a module of its own that imports the SDK builds and runs without a C compiler, clang, or anything else on PATH.
func TestModule(t *testing.T) {
	tool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("needs go on PATH")
	}
	here, err := filepath.Abs("../..")
	require.NoError(t, err)
	own, err := os.ReadFile(filepath.Join(here, "go.mod"))
	require.NoError(t, err)
	sums, err := os.ReadFile(filepath.Join(here, "go.sum"))
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(own), "\n")
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":  "module example.org/program\n" + rest + "\nrequire github.com/lanefs/lanefs v0.0.0\n\nreplace github.com/lanefs/lanefs => " + here + "\n",
		"go.sum":  string(sums),
		"main.go": "package main\n\nimport (\n\t\"os\"\n\n\tlanefs \"github.com/lanefs/lanefs/sdk/go\"\n\t\"github.com/lanefs/lanefs/sdk/go/device\"\n)\n\nfunc main() {\n\t_, err := lanefs.Connect(os.Stdin)\n\tprintln(err.Error())\n\t_, err = device.New(os.Stdin, 0)\n\tprintln(err.Error())\n}\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	cmd := exec.Command(tool, "build", "-mod=mod", "-o", "program", ".")
	cmd.Dir = dir
	cmd.Env = []string{"PATH=/nowhere", "CGO_ENABLED=0", "GOPROXY=off", "GOFLAGS=", "HOME=" + os.Getenv("HOME"), "GOTMPDIR=" + dir}
	for _, name := range []string{"GOPATH", "GOMODCACHE", "GOCACHE", "GOROOT"} {
		out, err := exec.Command(tool, "env", name).Output()
		require.NoError(t, err)
		cmd.Env = append(cmd.Env, name+"="+strings.TrimSpace(string(out)))
	}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	cmd = exec.Command(filepath.Join(dir, "program"))
	cmd.Env = []string{"LANEFS_LIBRARY=/nowhere/liblanefs.so.1"}
	out, err = cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "not on a LaneFS mount")
	require.Contains(t, string(out), "LANEFS_LIBRARY says where it is): /nowhere/liblanefs.so.1")
}
