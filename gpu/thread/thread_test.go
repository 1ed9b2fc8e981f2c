package thread_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu/thread"
)

// TestLocked: a goroutine is locked as long as it says so, and no other one is.
func TestLocked(t *testing.T) {
	require.False(t, thread.Locked())
	locked, ended, over := make(chan bool), make(chan bool), make(chan bool)
	go func() {
		defer close(over)
		end := thread.Lock()
		locked <- thread.Locked()
		<-ended
		end()
		locked <- thread.Locked()
	}()
	require.True(t, <-locked)
	require.False(t, thread.Locked())
	close(ended)
	require.False(t, <-locked)
	<-over
}

// TestWhoLocks: no goroutine that may copy to a GPU's memory is locked to its thread otherwise. Those that are below copy nothing while they are.
func TestWhoLocks(t *testing.T) {
	var found []string
	for _, room := range []string{"blockdev", "cmd/lanefs", "fs", "gpu", "nvmeq"} {
		root := filepath.Join("../..", room)
		require.NoError(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			b, err := os.ReadFile(path)
			if strings.Contains(string(b), "runtime.LockOSThread()") {
				found = append(found, strings.TrimPrefix(filepath.ToSlash(path), "../../"))
			}
			return err
		}))
	}
	slices.Sort(found)
	require.Equal(t, []string{
		"cmd/lanefs/internal/privilege/privilege.go",
		"fs/schedidle/group.go",
		"fs/schedidle/guard.go",
		"fs/share/gate/process.go",
		"fs/share/gate/start.go",
		"gpu/hip/agent.go",
		"gpu/internal/ccall/call_other.go",
		"gpu/thread/thread.go",
	}, found)
}
