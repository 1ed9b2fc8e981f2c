package ctest

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/share/gate"
)

// TestMain: a share starts this program again, as its gate.
func TestMain(m *testing.M) {
	gate.RunIfChild()
	code := m.Run()
	if built != "" {
		os.RemoveAll(built)
	}
	os.Exit(code)
}

var built string // the directory of build, for TestMain

// build makes the library, once for all tests: the compiler took most of their time. An installation makes what depends on its place again.
var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "lanefs-c")
	if err != nil {
		return "", err
	}
	built = dir
	out, err := exec.Command("make", "-s", "-C", "..", "BUILD="+dir).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return dir, err
})

// library is the directory in which the library was made.
func library(t *testing.T) string {
	t.Helper()
	dir, err := build()
	require.NoError(t, err)
	return dir
}
