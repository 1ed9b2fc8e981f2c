package ctest

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/share/gate"
	"github.com/lanefs/lanefs/lab/csdk"
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

// build copies the library as all tests have it, for an installation makes what depends on its place again.
var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "lanefs-c")
	if err != nil {
		return "", err
	}
	built = dir
	made, err := csdk.C()
	if err != nil {
		return "", err
	}
	if out, err := exec.Command("cp", "-a", made+"/.", dir).CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return dir, nil
})

// library is the directory in which the library was made.
func library(t *testing.T) string {
	t.Helper()
	dir, err := build()
	require.NoError(t, err)
	return dir
}
