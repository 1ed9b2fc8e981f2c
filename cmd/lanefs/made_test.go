package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// made has make build sdk/NAME in a folder that stays, and returns it: the compiler takes five seconds, which the next test need not, nor the next
// run. Nobody may write there but make.
func made(t *testing.T, name string, args ...string) string {
	t.Helper()
	build, err := filepath.Abs(filepath.Join("../../build", "test-"+name))
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(build, 0o755))
	lock, err := os.Create(filepath.Join(build, "lock")) // tests of other processes make there, too
	require.NoError(t, err)
	defer lock.Close()
	require.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	tool(t, "make", append([]string{"-s", "-C", filepath.Join("../../sdk", name), "BUILD=" + build}, args...)...)
	return build
}
