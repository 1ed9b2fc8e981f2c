package fs

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
)

// volume is an ext4 image in memory and what stands on it.
type volume struct {
	t    *testing.T
	path string
	dev  *blockdev.TestDevice
	vol  *ext4.FS
}

// newVolume makes a volume as today's mkfs.ext4 would, with more inodes than it would give so small an image; mkfs are
// further arguments.
func newVolume(t *testing.T, mkfs ...string) *volume {
	t.Helper()
	needTool(t, "mkfs.ext4")
	dir := "/dev/shm"
	if _, err := os.Stat(dir); err != nil {
		dir = ""
	}
	tmp, err := os.MkdirTemp(dir, "lanefs-fs-*")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(tmp) })
	v := &volume{t: t, path: filepath.Join(tmp, "image")}
	require.NoError(t, os.WriteFile(v.path, nil, 0o600))
	require.NoError(t, os.Truncate(v.path, 512<<20))
	args := []string{"-q", "-F", "-m", "0", "-N", "40000", "-O", "metadata_csum_seed,orphan_file", "-E", "lazy_itable_init=1"}
	out, err := exec.Command("mkfs.ext4", append(append(args, mkfs...), v.path)...).CombinedOutput()
	require.NoError(t, err, "mkfs.ext4: %s", out)
	v.open()
	return v
}

func (v *volume) open() {
	v.t.Helper()
	var err error
	v.dev, err = blockdev.OpenFile(v.path, 512)
	require.NoError(v.t, err)
	// No commit by the timer comes before what a test waits for at the device.
	v.vol, err = ext4.Open(v.dev, ext4.Options{Log: slog.New(slog.NewTextHandler(v.t.Output(), nil)), CommitInterval: time.Hour})
	require.NoError(v.t, err)
}

// close closes the volume and checks the image with e2fsck.
func (v *volume) close() {
	require.NoError(v.t, v.vol.Close())
	require.Zero(v.t, v.dev.Outstanding(), "pinned buffers that were not released")
	require.NoError(v.t, v.dev.Close())
	out, err := exec.Command("e2fsck", "-fn", v.path).CombinedOutput()
	require.NoError(v.t, err, "e2fsck -fn:\n%s", bytes.TrimSpace(out))
}

// openForHelper makes and opens a volume in dir, in a child that has no testing.T.
func openForHelper(dir string) (*ext4.FS, error) {
	path := filepath.Join(dir, "image")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return nil, err
	}
	if err := os.Truncate(path, 64<<20); err != nil {
		return nil, err
	}
	args := []string{"-q", "-F", "-O", "metadata_csum_seed,orphan_file", "-E", fmt.Sprintf("root_owner=%d:%d", os.Getuid(), os.Getgid()), path}
	if out, err := exec.Command("mkfs.ext4", args...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("mkfs.ext4: %w: %s", err, out)
	}
	dev, err := blockdev.OpenFile(path, 512)
	if err != nil {
		return nil, err
	}
	return ext4.Open(dev, ext4.Options{})
}
