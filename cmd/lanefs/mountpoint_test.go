package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseMounts(t *testing.T) {
	const info = `22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
25 22 0:22 / /proc rw shared:5 - proc proc rw
90 22 0:50 / /mnt/a\040b rw,nosuid,nodev shared:70 master:1 - fuse.lanefs /img\134x rw,user_id=1000,group_id=100,default_permissions
91 22 0:51 / /mnt rw - fuse.lanefs /i rw,user_id=0
`
	all, err := parseMounts(strings.NewReader(info))
	require.NoError(t, err)
	require.Equal(t, []*mountEntry{
		{"/", "ext4", "/dev/sda1", -1},
		{"/proc", "proc", "proc", -1},
		{"/mnt/a b", "fuse.lanefs", `/img\x`, 1000},
		{"/mnt", "fuse.lanefs", "/i", 0},
	}, all)
	require.True(t, all[2].LaneFS())
	for _, bad := range []string{"x\n", "1 2 3 4 5 6 - ext4\n"} {
		_, err := parseMounts(strings.NewReader(bad))
		require.Error(t, err)
	}
}

func TestUnescape(t *testing.T) {
	for in, want := range map[string]string{`a\040b`: "a b", `\134`: `\`, `a\`: `a\`, `\04`: `\04`, `\999x`: `\999x`, "": ""} {
		require.Equal(t, want, unescape(in), in)
	}
}

func TestResolveDir(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "d"), 0o755))
	require.NoError(t, os.Symlink("d", filepath.Join(dir, "l")))
	for in, want := range map[string]string{"d": "d", "l": "d", "d/": "d", "l/../d/.": "d", "absent": "absent"} {
		got, err := resolveDir(dir + "/" + in)
		require.NoError(t, err, in)
		require.Equal(t, filepath.Join(dir, want), got, in)
	}
	_, err = resolveDir("")
	require.Error(t, err)
	_, err = resolveDir(dir + "/absent/absent")
	require.ErrorContains(t, err, "no such file or directory")
}

func TestRunDirIsChecked(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	require.Error(t, checkRunDir(dir))
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, checkRunDir(dir))
	require.NoError(t, os.Chmod(dir, 0o750))
	require.ErrorContains(t, checkRunDir(dir), "mode 0700")
	require.NoError(t, os.Remove(dir))
	require.NoError(t, os.Symlink(t.TempDir(), dir))
	require.ErrorContains(t, checkRunDir(dir), "must be a directory")
}

func TestAsHelper(t *testing.T) {
	for _, c := range []struct{ in, want []string }{
		{[]string{"lanefs", "mount", "/a", "/b"}, []string{"mount", "/a", "/b"}},
		{[]string{"lanefs", "/a", "/b", "-o", "ro"}, []string{"mount", "/a", "/b", "-o", "ro"}},
		{[]string{"/sbin/mount.lanefs", "/a", "/b", "-n", "-s", "-t", "fuse.lanefs", "-o", "ro"}, []string{"mount", "/a", "/b", "-o", "ro"}},
		{[]string{"lanefs", "umount", "/b"}, []string{"umount", "/b"}},
		{[]string{"lanefs"}, []string{}},
	} {
		require.Equal(t, c.want, asHelper(c.in))
	}
}
