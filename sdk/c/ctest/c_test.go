// Package ctest builds the C SDK, installs it, and runs its test and example on a mount.
package ctest

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/share/sharetest"
	"github.com/lanefs/lanefs/lab/made"
)

const mib = 1 << 20

func TestC(t *testing.T) {
	for _, tool := range []string{"cc", "make"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s: make deps installs it", tool)
		}
	}
	m := sharetest.New(t, 128*mib, 64*mib)
	content := make([]byte, 5*mib+17)
	sum := 0
	for i := range content {
		content[i] = byte(i % 251)
		sum += i % 251
	}
	f := m.Write("file", content)
	file := f.Name()
	require.NoError(t, f.Close()) // or the mount is busy at the end
	other := filepath.Join(t.TempDir(), "other")
	require.NoError(t, os.WriteFile(other, content, 0o600))

	// Installed as a packager would, after having been built for elsewhere, and used from there.
	dest := t.TempDir()
	run(t, "make", "-s", "-C", "..", "install", "BUILD="+library(t), "DESTDIR="+dest, "PREFIX=/usr")
	for _, name := range []string{"include/lanefs.h", "include/lanefs_mpi.h", "lib/liblanefs.a", "lib/liblanefs.so", "lib/pkgconfig/lanefs.pc", "lib/cmake/lanefs/lanefs-config.cmake", "share/man/man3/lanefs.3"} {
		require.FileExists(t, filepath.Join(dest, "usr", name))
	}
	pc, err := os.ReadFile(filepath.Join(dest, "usr/lib/pkgconfig/lanefs.pc"))
	require.NoError(t, err)
	require.Contains(t, string(pc), "prefix=/usr\n")
	include, lib := "-I"+filepath.Join(dest, "usr/include"), "-L"+filepath.Join(dest, "usr/lib")
	test, example := filepath.Join(dest, "test"), filepath.Join(dest, "example")
	compile(t, test, "cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", include, filepath.Join("..", "test.c"), filepath.Join(dest, "usr/lib/liblanefs.a"), "-pthread")
	run(t, "cc", "-std=c11", "-Wall", "-Wextra", "-Werror", include, lib, "-o", example, filepath.Join("..", "example.c"), "-llanefs", "-Wl,-rpath,"+filepath.Join(dest, "usr/lib"))
	require.Equal(t, fmt.Sprintf("%d bytes in memory of the host runtime, sum %d, current\n", len(content), sum), run(t, example, file))

	cmd := exec.Command(test, file, other)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	lines := bufio.NewReader(out)
	said, _ := lines.ReadString('\n')
	require.Equal(t, "ok\n", said, "%s", &errs)
	m.Close() // it waits for that
	said, _ = lines.ReadString('\n')
	require.Equal(t, "gone\n", said, "%s", &errs)
	require.NoError(t, cmd.Wait())
}

// compile has a program that a compiler makes of args, or has made of the same before.
func compile(t *testing.T, program, cc string, args ...string) {
	t.Helper()
	require.NoError(t, made.Compile(program, nil, cc, args...))
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(t, err, "%s %q:\n%s", name, args, out)
	return string(out)
}
