package ext4_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// TestBadOrphans: the list from s_last_orphan leads to what cannot be there, at once or behind a file that was to be truncated.
// The volume can be read and is left to e2fsck.
func TestBadOrphans(t *testing.T) {
	disktest.Tool(t, "debugfs", "e2fsck")
	content := filepath.Join(t.TempDir(), "content")
	require.NoError(t, os.WriteFile(content, []byte("whole"), 0o644))
	file := int(disktest.FirstFile(t, disktest.Make(t, "16M")))
	for _, bad := range []int{99_999_999, 2, 8, file, file + 1} {
		for _, behind := range []bool{false, true} {
			if bad == file && !behind {
				continue // it can be there
			}
			t.Run(fmt.Sprintf("%d,behind=%t", bad, behind), func(t *testing.T) {
				img := disktest.Make(t, "16M")
				disktest.Debugfs(t, img, "write "+content+" f")
				if behind {
					disktest.Debugfs(t, img, fmt.Sprintf("sif <%d> dtime %d", file, bad), fmt.Sprintf("ssv last_orphan %d", file))
				} else {
					disktest.Debugfs(t, img, fmt.Sprintf("ssv last_orphan %d", bad))
				}
				v, done := open(t, img, ext4.Options{})
				require.True(t, v.ReadOnly())
				root, err := v.Root()
				require.NoError(t, err)
				_, err = root.Mkdir("d", 0o755, 0, 0)
				require.ErrorIs(t, err, ext4.ErrReadOnly)
				f, err := root.Lookup("f")
				require.NoError(t, err)
				require.EqualValues(t, 5, f.Attr().Size)
				f.Put()
				root.Put()
				done()
				if out, err := exec.Command("e2fsck", "-fy", img).CombinedOutput(); err != nil {
					var exit *exec.ExitError
					require.ErrorAs(t, err, &exit)
					require.Equal(t, 1, exit.ExitCode(), "%s", out) // corrected
				}
				disktest.Fsck(t, img)
			})
		}
	}
}
