package fs

import (
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
)

// TestDurable: what a synchronous mount or inode did is on the medium when the call returns. Nothing else commits here.
func TestDurable(t *testing.T) {
	needFuse(t)
	for _, c := range []struct {
		name  string
		mount []string
		flags uint32 // of the root directory
		names bool   // only changes of names are durable
	}{
		{"sync", []string{"sync"}, 0, false},
		{"dirsync", []string{"dirsync"}, 0, true},
		{"chattr +S", nil, ext4.FlagSync, false},
		{"chattr +D", nil, ext4.FlagDirSync, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := newVolume(t)
			require.NoError(t, v.vol.Close())
			var err error
			v.vol, err = ext4.Open(v.dev, ext4.Options{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), CommitInterval: time.Hour})
			require.NoError(t, err)
			root, err := v.vol.Root()
			require.NoError(t, err)
			require.NoError(t, root.SetFlags(root.Flags()&ext4.FlagsVisible|c.flags))
			root.Put()
			require.NoError(t, v.vol.Sync())
			m := mountVolume(t, v, Options{Mount: c.mount})

			size := func(in *ext4.Inode) (any, error) { return in.Attr().Size, nil }
			for _, s := range []struct {
				what  string
				do    func() error
				name  string
				look  func(*ext4.Inode) (any, error)
				want  any // nil: the name is gone
				names bool
			}{
				{"create", func() error { return os.WriteFile(m.path("f"), nil, 0o600) }, "f", size, int64(0), true},
				{"mkdir", func() error { return os.Mkdir(m.path("d"), 0o700) }, "d", size, int64(4096), true},
				{"symlink", func() error { return os.Symlink("target", m.path("s")) }, "s", size, int64(6), true},
				{"mknod", func() error { return unix.Mkfifo(m.path("p"), 0o600) }, "p", size, int64(0), true},
				{"link", func() error { return os.Link(m.path("f"), m.path("l")) }, "l", size, int64(0), true},
				{"rename", func() error { return os.Rename(m.path("f"), m.path("d", "f")) }, "f", nil, nil, true},
				{"unlink", func() error { return os.Remove(m.path("p")) }, "p", nil, nil, true},
				{"rmdir", func() error {
					if err := os.Rename(m.path("d", "f"), m.path("f")); err != nil {
						return err
					}
					return os.Remove(m.path("d"))
				}, "d", nil, nil, true},
				{"write", func() error { return os.WriteFile(m.path("f"), []byte("bytes"), 0) }, "f", size, int64(5), false},
				{"truncate", func() error { return os.Truncate(m.path("f"), 10000) }, "f", size, int64(10000), false},
				{"fallocate", func() error {
					f, err := os.OpenFile(m.path("f"), os.O_WRONLY, 0)
					if err != nil {
						return err
					}
					defer f.Close()
					return unix.Fallocate(int(f.Fd()), 0, 0, 20000)
				}, "f", size, int64(20000), false},
				{"setxattr", func() error { return unix.Setxattr(m.path("f"), "user.a", []byte("b"), 0) }, "f",
					func(in *ext4.Inode) (any, error) { b, err := in.Getxattr("user.a"); return string(b), err }, "b", false},
				{"removexattr", func() error { return unix.Removexattr(m.path("f"), "user.a") }, "f",
					func(in *ext4.Inode) (any, error) { n, err := in.Listxattr(); return len(n), err }, 0, false},
			} {
				require.NoError(t, s.do(), s.what)
				if c.names && !s.names {
					continue
				}
				got, err := lookAfterCut(t, v.path, s.name, s.look)
				if s.want == nil {
					require.ErrorIs(t, err, ext4.ErrNotExist, s.what)
					continue
				}
				require.NoError(t, err, s.what)
				require.Equal(t, s.want, got, s.what)
			}
		})
	}
}

// lookAfterCut looks at a name in the root directory of a mounted volume as it would be after a power cut now. Nothing may
// write meanwhile.
func lookAfterCut(t *testing.T, image, name string, look func(*ext4.Inode) (any, error)) (any, error) {
	t.Helper()
	dev, err := blockdev.OpenFile(image, 512)
	require.NoError(t, err)
	defer dev.Close()
	v, err := ext4.Open(dev, ext4.Options{ReadOnly: true, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	require.NoError(t, err)
	defer v.Close()
	root, err := v.Root()
	require.NoError(t, err)
	defer root.Put()
	in, err := root.Lookup(name)
	if err != nil {
		return nil, err
	}
	defer in.Put()
	return look(in)
}
