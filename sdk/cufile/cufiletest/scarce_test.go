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

// TestScarce: a process that may have few addresses or descriptors, or no locked memory: calls fail and say so, and the same handles do all when there is more. Children by vfork get nothing.
// Make test takes one way of small reads.
func TestScarce(t *testing.T) {
	usr := installed(t)
	test := filepath.Join(t.TempDir(), "testscarce")
	link(t, usr, test, compile(t, "../testscarce.c", "-I"+filepath.Join(usr, "include/lanefs")), "-pthread")
	m := sharetest.New(t, 128*mib, 64*mib)
	file, other := files(t, m)
	for k, way := range [][]string{{"LANEFS_CUFILE_MAP=0", "LANEFS_CUFILE_SMALL=lanes"}, {"LANEFS_CUFILE_SMALL=cache"}} {
		if !disktest.Turn(k, 2) {
			continue
		}
		cmd := exec.Command(test, file, other)
		cmd.Env = append(append(os.Environ(), "LANEFS_REAL_CUFILE="), way...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", way, out)
		require.Equal(t, "ok\n", string(out))
	}
}
