package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStalled: of the processes of a tree like /proc, those that may hold others up.
func TestStalled(t *testing.T) {
	root := t.TempDir()
	file := func(name, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o644))
	}
	ns := func(name, to string) {
		require.NoError(t, os.MkdirAll(filepath.Join(root, name, "ns"), 0o755))
		require.NoError(t, os.Symlink(to, filepath.Join(root, name, "ns/mnt")))
	}
	ns("self", "mnt:[1]")
	ns("7", "mnt:[1]")
	file("7/cmdline", "umount\x00/m\x00")
	file("7/task/7/stat", "7 (a) D (b) S 1")
	file("7/task/8/stat", "8 (umount) D 1 7")
	file("7/task/8/stack", "[<0>] fuse_wait_aborted+0x1a/0x90\n[<0>] deactivate_locked_super+0x3/0x4\n")
	file("7/task/9/stat", "9 (umount) D 1 7")
	file("7/task/9/stack", "[<0>] fuse_wait_aborted+0x1a/0x90\n[<0>] deactivate_locked_super+0x3/0x4\n")
	require.Equal(t, []string{"waiting threads: 2 of process 7, umount, in the kernel: fuse_wait_aborted < deactivate_locked_super"}, stalled(root))
	ns("9", "mnt:[2]")
	file("9/cmdline", "sleep\x00600\x00")
	ns("10", "mnt:[3]") // a thread of the kernel
	require.Contains(t, stalled(root), "process 9 is in another mount namespace: sleep 600")
	require.Len(t, stalled(root), 2)
	require.NotPanics(t, func() { stalled("/proc") })
}
