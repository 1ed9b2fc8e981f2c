// Package tsan builds C and C++ programs with clang's ThreadSanitizer and runs them, for tests. A test is skipped where the
// compiler, its runtime, or an address layout that it can do with is missing.
package tsan

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/lab/made"
)

// Clang is the compiler.
func Clang(t testing.TB) string {
	t.Helper()
	clang, err := exec.LookPath("clang-19")
	if err != nil {
		t.Skip("clang-19 is missing: apt-get install clang-19 libclang-rt-19-dev")
	}
	return clang
}

// Compile has a program that the compiler makes with -fsanitize=thread and args, which read the files and folders in also besides those that args name (made.Compile).
func Compile(t testing.TB, program string, also []string, args ...string) {
	t.Helper()
	err := made.Compile(program, also, Clang(t), append([]string{"-fsanitize=thread"}, args...)...)
	if err != nil && strings.Contains(err.Error(), "libclang_rt.tsan") {
		t.Skip("ThreadSanitizer's runtime is missing: apt-get install libclang-rt-19-dev")
	}
	require.NoError(t, err)
}

// Run runs a program that was built so, and returns what it printed.
func Run(t testing.TB, c *exec.Cmd) (string, error) {
	t.Helper()
	out, err := c.CombinedOutput()
	if strings.Contains(string(out), "unexpected memory mapping") {
		t.Skip("ThreadSanitizer does not run under this kernel's address layout: sysctl vm.mmap_rnd_bits=28")
	}
	return string(out), err
}
