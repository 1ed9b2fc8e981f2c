package loopmount_test

import (
	"bufio"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// TestUnmountElsewhere: a mount namespace that was made meanwhile has a copy of the mount, and with it the kernel the volume, what was written
// to it in memory. The unmount returns when that is over.
func TestUnmountElsewhere(t *testing.T) {
	disktest.Tool(t, "unshare")
	img := disktest.Make(t, "8M")
	var released atomic.Bool
	disktest.Mount(t, img, "", func(dir string) {
		require.NoError(t, os.WriteFile(dir+"/file", []byte("here"), 0o644))
		holder := exec.Command("unshare", "--mount", "sh", "-c", "echo; exec sleep 600")
		started, err := holder.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, holder.Start())
		t.Cleanup(func() { holder.Process.Kill(); holder.Wait() })
		_, err = bufio.NewReader(started).ReadString('\n')
		require.NoError(t, err)
		time.AfterFunc(300*time.Millisecond, func() {
			released.Store(true)
			holder.Process.Kill()
		})
	})
	require.True(t, released.Load(), "it returned while the other namespace had the volume")
	require.Contains(t, disktest.Debugfs(t, img, "cat file"), "here")
	disktest.Fsck(t, img)
}
