package cufiletest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
	"github.com/lanefs/lanefs/fs/share/sharetest"
)

// TestMemory: memory of every kind, which may not be there, may be the mount's own file, or is taken away in the middle. The library has no bytes wrong, waits for nobody that others wait for, and does not crash.
// Make test takes one of three ways.
func TestMemory(t *testing.T) {
	usr := installed(t)
	test := filepath.Join(t.TempDir(), "testmemory")
	link(t, usr, test, compile(t, "../testmemory.c", "-I"+filepath.Join(usr, "include/lanefs")), "-pthread")
	m := sharetest.New(t, 128*mib, 64*mib)
	file, other := files(t, m)
	for k, way := range [][]string{{"LANEFS_CUFILE_MAP=0", "LANEFS_CUFILE_SMALL=lanes"}, {"LANEFS_CUFILE_MAP=now", "LANEFS_CUFILE_SMALL=lanes"}, {"LANEFS_CUFILE_MAP=0", "LANEFS_CUFILE_SMALL=cache"}} {
		if !disktest.Turn(k, 3) {
			continue
		}
		cmd := exec.Command(test, file, other)
		cmd.Env = append(append(os.Environ(), "LANEFS_REAL_CUFILE="), way...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", way, out)
		require.Equal(t, "ok\n", string(out))
	}
}
