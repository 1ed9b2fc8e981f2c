package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/uring/uringtest"
)

// TestIOUring mounts over io_uring, uses the mount, kills the daemon, mounts again, and unmounts.
func TestIOUring(t *testing.T) {
	uringtest.Enable(t)
	p := newPlace(t)
	image, mnt := p.image("image", 64), p.mkdir("mnt")
	require.Contains(t, p.ok("doctor"), "ok    FUSE over io_uring")
	p.ok("mount", "-o", "io_uring=on", image, mnt)
	r, err := p.stat(mnt)
	require.NoError(t, err)
	require.Contains(t, r.FUSE.Transport, "io_uring")
	require.Contains(t, p.ok("stat", mnt), "requests    by io_uring")
	file := filepath.Join(mnt, "file")
	require.NoError(t, os.WriteFile(file, []byte("over a ring"), 0o644))
	f, err := os.Open(file)
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	require.Contains(t, p.fails("umount", mnt), "busy")
	require.NoError(t, f.Close())

	require.NoError(t, unix.Kill(r.PID, unix.SIGKILL))
	p.eventually("the daemon is gone", func() bool { return gone(r.PID) })
	p.ok("mount", "-o", "io_uring=on", image, mnt)
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "over a ring", string(b))
	p.ok("umount", mnt)
	fsck(t, image)
}

// TestIOUringUnavailable: the mount goes on by /dev/fuse, and stat and doctor say why.
func TestIOUringUnavailable(t *testing.T) {
	uringtest.Disable(t)
	p := newPlace(t)
	image, mnt := p.image("image", 64), p.mkdir("mnt")
	p.ok("mount", "-o", "io_uring=on", image, mnt)
	require.Contains(t, p.ok("stat", mnt), "requests    by /dev/fuse, not io_uring: the fuse module's parameter enable_uring is off (options fuse enable_uring=1")
	p.ok("umount", mnt)
	require.Contains(t, p.ok("doctor"), "no    FUSE over io_uring")
}
