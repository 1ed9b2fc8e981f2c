package ext4_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// TestVersion: every change of a file moves i_version, reading does not, and debugfs reads what was written.
func TestVersion(t *testing.T) {
	img := disktest.Make(t, "16M")
	v, _, done := openLogged(t, img)
	root, err := v.Root()
	require.NoError(t, err)
	f, err := root.Create("f", 0o100644, 0, 0, 0, 0)
	require.NoError(t, err)
	mode, size := uint32(0o600), int64(10)
	for _, k := range []struct {
		name string
		do   func() error
		same bool
	}{
		{"write", func() error { _, err := f.Write(0, make([]byte, 5000)); return err }, false},
		{"read", func() error {
			data, err := f.Read(0, 100)
			if err == nil {
				data.Release()
			}
			return err
		}, true},
		{"chmod", func() error { _, err := f.SetAttr(ext4.SetAttr{Mode: &mode}); return err }, false},
		{"truncate", func() error { _, err := f.SetAttr(ext4.SetAttr{Size: &size}); return err }, false},
		{"fallocate", func() error { return f.Fallocate(0, 0, 50_000) }, false},
		{"setxattr", func() error { return f.Setxattr("user.a", []byte("b"), 0) }, false},
		{"link", func() error { return root.Link(f, "g") }, false},
		{"rename", func() error { return root.Rename("g", root, "h", 0) }, false},
		{"unlink", func() error { return root.Unlink("h") }, false},
		{"lookup", func() error { g, err := root.Lookup("f"); g.Put(); return err }, true},
	} {
		before := f.Live().Disk.Version
		require.NoError(t, k.do(), k.name)
		if k.same {
			require.Equal(t, before, f.Live().Disk.Version, k.name)
		} else {
			require.Greater(t, f.Live().Disk.Version, before, k.name)
		}
	}
	want := fmt.Sprintf("Version: 0x%08x:%08x", f.Live().Disk.Version>>32, uint32(f.Live().Disk.Version))
	f.Put()
	root.Put()
	require.NoError(t, done())
	require.Contains(t, disktest.Debugfs(t, img, "stat f"), want)
}
