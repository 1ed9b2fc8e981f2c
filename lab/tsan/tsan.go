// Package tsan builds C and C++ programs with clang's ThreadSanitizer and runs them, for tests. A test is skipped where the
// compiler, its runtime, or an address layout that it can do with is missing.
package tsan

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
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

// Compile calls the compiler with -fsanitize=thread and args.
func Compile(t testing.TB, args ...string) {
	t.Helper()
	out, err := exec.Command(Clang(t), append([]string{"-fsanitize=thread"}, args...)...).CombinedOutput()
	if err != nil && strings.Contains(string(out), "libclang_rt.tsan") {
		t.Skip("ThreadSanitizer's runtime is missing: apt-get install libclang-rt-19-dev")
	}
	require.NoError(t, err, "%s", out)
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
