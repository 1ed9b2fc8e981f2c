package ext4_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
)

// openLogged opens an image and collects what the volume says.
func openLogged(t *testing.T, img string) (v *ext4.FS, log *[]string, done func() error) {
	t.Helper()
	dev, err := blockdev.OpenFile(img, 512)
	require.NoError(t, err)
	log = new([]string)
	v, err = ext4.Open(dev, ext4.Options{Log: disktest.Logger(func(line string) { *log = append(*log, line) })})
	require.NoError(t, err)
	return v, log, func() error { return errors.Join(v.Close(), dev.Close()) }
}

// TestMountsForReading mounts volumes that e2fsck has to see first: for reading, whatever was asked for, and without a write.
func TestMountsForReading(t *testing.T) {
	for _, tc := range []struct {
		name, says string
		args       []string
		damage     func(t *testing.T, img string)
	}{
		{"errors", "errors that were met before", nil, func(t *testing.T, img string) {
			patchSuper(t, img, func(sb *disk.Superblock) { sb.State |= disk.StateError })
		}},
		{"not clean", "not unmounted cleanly", []string{"-O", "^has_journal"}, func(t *testing.T, img string) {
			patchSuper(t, img, func(sb *disk.Superblock) { sb.State &^= disk.StateValid })
		}},
		{"descriptor", "group descriptor 0: checksum", nil, func(t *testing.T, img string) {
			m := disktest.Open(t, img)
			b := m.Block(m.DescBlock(0))
			b[0x0C] ^= 1
			m.SetBlock(m.DescBlock(0), b)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			img := disktest.Make(t, "16M", tc.args...)
			tc.damage(t, img)
			before, err := os.ReadFile(img)
			require.NoError(t, err)
			v, log, done := openLogged(t, img)
			require.True(t, v.ReadOnly())
			require.Len(t, *log, 1)
			require.Contains(t, (*log)[0], tc.says)
			require.Contains(t, (*log)[0], "e2fsck")
			root, err := v.Root()
			require.NoError(t, err)
			size := int64(0)
			_, err = root.SetAttr(ext4.SetAttr{Size: &size})
			require.ErrorIs(t, err, ext4.ErrReadOnly)
			root.Put()
			require.NoError(t, done())
			after, err := os.ReadFile(img)
			require.NoError(t, err)
			require.True(t, bytes.Equal(before, after), "written to")
		})
	}
}

// TestHalfOperation has an operation fail after its first change: the change must never reach the volume, what was
// committed before stays, and the next mount knows. It is undone, or the journal fails where that can't be.
func TestHalfOperation(t *testing.T) {
	half := func(args []string, cause error, blind bool) func(t *testing.T) {
		return func(t *testing.T) {
			img := disktest.Make(t, "16M", args...)
			v, log, done := openLogged(t, img)
			root, err := v.Root()
			require.NoError(t, err)
			f, err := root.Create("before", unix.S_IFREG|0o644, 0, 0, 0, 0)
			require.NoError(t, err)
			f.Put()
			require.NoError(t, v.Sync())

			err = v.Volume().Change(nil, func(o *volume.Op) error {
				o.Lock(root.Live())
				return o.Do(8, func() error {
					root.Live().Disk.LinksCount = 77
					require.NoError(t, root.Live().Store(o))
					if blind {
						super, err := v.Volume().Cache.Get(disk.Block(v.Volume().Super.SuperBlockNo()))
						require.NoError(t, err)
						o.Handle.Dirty(super) // without a word on how to put it back
						super.Put()
					}
					return cause
				})
			})
			require.ErrorIs(t, err, cause)
			require.EqualValues(t, 3, root.Attr().Links)
			require.True(t, v.ReadOnly())
			_, err = root.Create("after", unix.S_IFREG|0o644, 0, 0, 0, 0)
			require.ErrorIs(t, err, ext4.ErrReadOnly)
			root.Put()
			if err := done(); blind {
				require.ErrorIs(t, err, cause)
			} else {
				require.NoError(t, err)
			}
			require.Len(t, *log, 1, "told once")
			require.Contains(t, (*log)[0], cause.Error())

			v, log, done = openLogged(t, img)
			require.True(t, v.ReadOnly())
			require.Contains(t, strings.Join(*log, "\n"), "errors that were met before")
			root, err = v.Root()
			require.NoError(t, err)
			require.EqualValues(t, 3, root.Attr().Links)
			f, err = root.Lookup("before")
			require.NoError(t, err)
			f.Put()
			root.Put()
			require.NoError(t, done())
			e2fsck(t, img, "-fy")
			disktest.Fsck(t, img)
			v, _, done = openLogged(t, img)
			require.False(t, v.ReadOnly())
			require.NoError(t, done())
		}
	}
	damage, failure := disk.Corrupt("a thing", "it cannot be"), errors.New("the device failed")
	noJournal := []string{"-O", "^has_journal"}
	t.Run("damage, undone", half(nil, damage, false))
	t.Run("damage, undone, no journal", half(noJournal, damage, false))
	t.Run("not undone", half(nil, failure, true))
	t.Run("damage, not undone, no journal", half(noJournal, damage, true))
}

// TestValuesInInodes reads, replaces, removes and frees values of attributes that have inodes of their own.
func TestValuesInInodes(t *testing.T) {
	img := disktest.Make(t, "16M", "-O", "ea_inode")
	value := bytes.Repeat([]byte("long value "), 1000)
	disktest.Mount(t, img, "", func(dir string) {
		for _, n := range []string{"read", "replaced", "removed", "freed"} {
			p := filepath.Join(dir, n)
			require.NoError(t, os.WriteFile(p, []byte(n), 0o644))
			require.NoError(t, unix.Setxattr(p, "user.small", []byte("s"), 0))
			require.NoError(t, unix.Setxattr(p, "user.long", value, 0)) // one inode for all: the values agree
			require.NoError(t, unix.Setxattr(p, "user.own", append(value, n...), 0))
		}
	})
	v, _, done := openLogged(t, img)
	root, err := v.Root()
	require.NoError(t, err)
	with := func(n string, f func(i *ext4.Inode)) {
		i, err := root.Lookup(n)
		require.NoError(t, err)
		f(i)
		i.Put()
	}
	for range 2 { // reading leaves no trace in the inode of the value
		for _, n := range []string{"read", "freed"} {
			with(n, func(i *ext4.Inode) {
				got, err := i.Getxattr("user.own")
				require.NoError(t, err)
				require.Equal(t, string(value)+n, string(got))
			})
		}
	}
	with("replaced", func(i *ext4.Inode) {
		require.NoError(t, i.Setxattr("user.long", []byte("short"), 0))
		require.NoError(t, i.Setxattr("user.own", []byte("short"), ext4.XattrReplace))
	})
	with("removed", func(i *ext4.Inode) {
		require.NoError(t, i.Removexattr("user.long"))
		require.NoError(t, i.Removexattr("user.own"))
	})
	require.NoError(t, root.Unlink("freed"))
	root.Put()
	require.NoError(t, done())
	disktest.Fsck(t, img)
	disktest.Mount(t, img, "ro", func(dir string) {
		b := make([]byte, 1<<16)
		n, err := unix.Getxattr(filepath.Join(dir, "read"), "user.own", b)
		require.NoError(t, err)
		require.Equal(t, string(value)+"read", string(b[:n]))
		n, err = unix.Getxattr(filepath.Join(dir, "replaced"), "user.own", b)
		require.NoError(t, err)
		require.Equal(t, "short", string(b[:n]))
		_, err = unix.Getxattr(filepath.Join(dir, "removed"), "user.own", b)
		require.ErrorIs(t, err, unix.ENODATA)
	})
}

// TestValuesIntoInodes sets attributes whose values need inodes, for files and with new ones: the kernel reads them.
func TestValuesIntoInodes(t *testing.T) {
	for _, bs := range []string{"1024", "4096"} {
		img := disktest.Make(t, "16M", "-O", "ea_inode", "-b", bs)
		value := func(n int) []byte { return bytes.Repeat([]byte("long value "), n/11+1)[:n] }
		v, _, done := openLogged(t, img)
		root, err := v.Root()
		require.NoError(t, err)
		before := v.Statfs()
		f, err := root.Create("f", unix.S_IFREG|0o644, 0, 0, 0, 0, ext4.Xattrs{{Name: "user.new", Value: value(9000)}})
		require.NoError(t, err)
		for _, n := range []int{5000, 65536, 12288, 100, 40000} { // each replaces the one before
			require.NoError(t, f.Setxattr("user.long", value(n), 0))
			got, err := f.Getxattr("user.long")
			require.NoError(t, err)
			require.Equal(t, value(n), got)
		}
		require.NoError(t, f.Setxattr("user.other", value(30000), ext4.XattrCreate))
		require.NoError(t, f.Setxattr("user.gone", value(30000), ext4.XattrCreate))
		require.NoError(t, f.Removexattr("user.gone"))
		f.Put()
		root.Put()
		require.NoError(t, done())
		disktest.Fsck(t, img)
		disktest.Mount(t, img, "", func(dir string) {
			b := make([]byte, 1<<16)
			for name, want := range map[string]int{"user.long": 40000, "user.new": 9000, "user.other": 30000} {
				n, err := unix.Getxattr(filepath.Join(dir, "f"), name, b)
				require.NoError(t, err, name)
				require.Equal(t, value(want), b[:n], name)
			}
			require.NoError(t, unix.Removexattr(filepath.Join(dir, "f"), "user.other"))
		})
		disktest.Fsck(t, img)
		v, _, done = openLogged(t, img)
		root, err = v.Root()
		require.NoError(t, err)
		require.NoError(t, root.Unlink("f"))
		require.NoError(t, v.Sync())
		require.Equal(t, before, v.Statfs(), "all of it is free again")
		root.Put()
		require.NoError(t, done())
		disktest.Fsck(t, img)
	}
}

// TestFirstAttribute sets ext_attr with the first extended attribute.
func TestFirstAttribute(t *testing.T) {
	img := disktest.Make(t, "16M", "-O", "^ext_attr", "-I", "128")
	v, _, done := openLogged(t, img)
	root, err := v.Root()
	require.NoError(t, err)
	require.NoError(t, root.Setxattr("user.first", []byte("value"), 0))
	root.Put()
	require.NoError(t, done())
	disktest.Fsck(t, img)
}

func e2fsck(t *testing.T, img string, flag string) {
	t.Helper()
	disktest.Tool(t, "e2fsck")
	out, err := exec.Command("e2fsck", flag, img).CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() <= 3 { // corrected
		return
	}
	require.NoError(t, err, "%s", out)
}

// TestValuesWithoutFeature: a file whose attributes have values in inodes, on a volume without the feature, is not removed: the inodes
// would be left without any reference.
func TestValuesWithoutFeature(t *testing.T) {
	img := disktest.Make(t, "16M", "-O", "ea_inode,^orphan_file") // of the latter e2fsck would say that it was in use
	v, _, done := openLogged(t, img)
	root, err := v.Root()
	require.NoError(t, err)
	for _, name := range []string{"removed", "replaced", "other"} {
		f, err := root.Create(name, unix.S_IFREG|0o644, 0, 0, 0, 0, ext4.Xattrs{{Name: "user.long", Value: bytes.Repeat([]byte(name), 2000)}})
		require.NoError(t, err)
		f.Put()
	}
	root.Put()
	require.NoError(t, done())
	disktest.Fsck(t, img)
	disktest.Debugfs(t, img, "feature -ea_inode")
	before := fsckText(t, img)
	v, _, done = openLogged(t, img)
	root, err = v.Root()
	require.NoError(t, err)
	require.ErrorIs(t, root.Unlink("removed"), ext4.ErrCorrupt)
	require.ErrorIs(t, root.Rename("other", root, "replaced", 0), ext4.ErrReadOnly) // since the first
	for _, name := range []string{"removed", "replaced", "other"} {
		f, err := root.Lookup(name)
		require.NoError(t, err)
		f.Put()
	}
	root.Put()
	require.NoError(t, done())
	require.Equal(t, before, fsckText(t, img))
}

// fsckText is what e2fsck -fn says, but for the file's name and that there were errors.
func fsckText(t *testing.T, img string) string {
	t.Helper()
	out, _ := exec.Command("e2fsck", "-fn", img).CombinedOutput()
	_, text, _ := strings.Cut(string(out), "Pass 1")
	return text
}
