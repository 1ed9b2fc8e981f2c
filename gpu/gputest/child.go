package gputest

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A library is opened once per process. What a test is to see of another one it sees in a child: this binary again, in a
// process of its own.

// reporting is set in a child.
const reporting = "LANEFS_TEST_REPORT"

// Reporting skips the test that calls it, unless it is a child's.
func Reporting(t testing.TB) {
	t.Helper()
	if os.Getenv(reporting) == "" {
		t.Skip("other tests run this one")
	}
}

// Child runs the tests whose names match run, which must pass, and returns what they print. The loader, a command line, is
// put before that of the binary.
func Child(t testing.TB, run string, env []string, loader ...string) string {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	line := slices.Concat(loader, []string{self, "-test.v", "-test.run", run})
	c := exec.Command(line[0], line[1:]...)
	c.Env = append(slices.Clone(env), reporting+"=1")
	out, err := c.CombinedOutput()
	if err != nil && strings.Contains(string(out), "GLIBC_") {
		t.Skipf("this test binary needs a newer libc than Debian's: %s", out)
	}
	require.NoError(t, err, "%s", out)
	return string(out)
}
