package memfd

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestNew(t *testing.T) {
	fd, err := New("test")
	require.NoError(t, err)
	defer unix.Close(fd)
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	require.NoError(t, err)
	if seals&unix.F_SEAL_EXEC == 0 {
		require.Error(t, unix.Access("/proc/sys/vm/memfd_noexec", unix.F_OK), "the kernel knows MFD_NOEXEC_SEAL")
	}
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
	require.NoError(t, err)
}

// TestNowhereElse: all memfds of the product are made so, in Go, C and Python.
func TestNowhereElse(t *testing.T) {
	root := filepath.Join("..", "..")
	call := regexp.MustCompile(`(?i)memfd_?create[(,]`) // a call, or the function given to another
	var found []string
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		switch base := d.Name(); {
		case d.IsDir() && (name == "lab" || name == "build" || strings.HasPrefix(base, ".") && name != "."):
			return filepath.SkipDir
		case d.IsDir(), strings.HasSuffix(base, "_test.go"), filepath.Ext(base) == ".c" && strings.HasPrefix(base, "test"):
			return nil
		}
		switch filepath.Ext(name) {
		case ".go", ".c", ".h", ".py":
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if call.Match(b) {
				found = append(found, name)
			}
		}
		return nil
	}))
	// The first is a double for tests.
	require.Equal(t, []string{"blockdev/testdevice.go", "gpu/memfd/memfd.go", "sdk/c/lanefs.c", "sdk/python/lanefs/_wire.py"}, found)
}
