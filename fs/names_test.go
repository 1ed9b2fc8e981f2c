package fs

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(b)
}

func stat(t *testing.T, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Lstat(path, &st))
	return st
}

func TestRename(t *testing.T) {
	m := newMount(t, Options{})
	a, b, d1, d2 := m.path("a"), m.path("b"), m.path("d1"), m.path("d2")
	rename := func(from, to string, flags uint) error {
		return unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, flags)
	}
	write(t, a, "a")
	write(t, b, "b")
	require.NoError(t, os.Mkdir(d1, 0o755))
	require.NoError(t, os.Mkdir(d2, 0o755))
	write(t, d1+"/in", "in")

	require.ErrorIs(t, rename(a, b, unix.RENAME_NOREPLACE), unix.EEXIST)
	require.NoError(t, rename(a, b, unix.RENAME_EXCHANGE))
	require.Equal(t, "b", read(t, a))
	require.Equal(t, "a", read(t, b))
	require.ErrorIs(t, rename(a, m.path("none"), unix.RENAME_EXCHANGE), unix.ENOENT)
	require.NoError(t, rename(a, d1, unix.RENAME_EXCHANGE), "a file for a directory")
	require.Equal(t, "in", read(t, a+"/in"))
	require.Equal(t, "b", read(t, d1))
	require.NoError(t, rename(a, d1, unix.RENAME_EXCHANGE))

	require.ErrorIs(t, rename(a, d2, 0), unix.EISDIR)
	require.ErrorIs(t, rename(d2, a, 0), unix.ENOTDIR)
	require.ErrorIs(t, rename(d2, d1, 0), unix.ENOTEMPTY)
	require.ErrorIs(t, rename(d1, d1+"/below", 0), unix.EINVAL)
	require.ErrorIs(t, rename(a, b, unix.RENAME_WHITEOUT|unix.RENAME_EXCHANGE), unix.EINVAL)
	require.NoError(t, rename(d1, d2, 0), "over an empty directory")
	require.Equal(t, "in", read(t, d2+"/in"))
	require.EqualValues(t, stat(t, m.dir).Nlink, 2+2, "., .., lost+found, d2")

	require.NoError(t, os.Mkdir(d1, 0o755))
	require.NoError(t, rename(d2, d1+"/moved", 0))
	require.Equal(t, stat(t, d1).Ino, stat(t, d1+"/moved/..").Ino)
	require.NoError(t, rename(a, b, 0), "over a file")
	require.NoFileExists(t, a)
	require.Equal(t, "b", read(t, b))
}

func TestTmpfile(t *testing.T) {
	m := newMount(t, Options{})
	fd, err := unix.Open(m.dir, unix.O_TMPFILE|unix.O_RDWR, 0o640)
	require.NoError(t, err)
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte("late"))
	require.NoError(t, err)
	require.NoError(t, unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, m.path("named"),
		unix.AT_SYMLINK_FOLLOW))
	require.Equal(t, "late", read(t, m.path("named")))
	require.EqualValues(t, 1, stat(t, m.path("named")).Nlink)

	fd, err = unix.Open(m.dir, unix.O_TMPFILE|unix.O_EXCL|unix.O_RDWR, 0o640)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.Error(t, unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, m.path("never"),
		unix.AT_SYMLINK_FOLLOW), "O_EXCL says that it will never have a name")
}

// TestOpenUnlinked: a file without names works until it is closed, and its blocks come back after.
func TestOpenUnlinked(t *testing.T) {
	m := newMount(t, Options{})
	write(t, m.path("warm"), "") // what the directory itself needs
	before := m.vol.Statfs()
	f, err := os.Create(m.path("file"))
	require.NoError(t, err)
	data := make([]byte, 3<<20)
	_, err = f.Write(data)
	require.NoError(t, err)
	require.NoError(t, os.Remove(m.path("file")))
	_, err = f.WriteAt([]byte("end"), 5<<20)
	require.NoError(t, err)
	got := make([]byte, 3)
	_, err = f.ReadAt(got, 5<<20)
	require.NoError(t, err)
	require.Equal(t, "end", string(got))
	st, err := f.Stat()
	require.NoError(t, err)
	require.EqualValues(t, 5<<20+3, st.Size())
	require.NoError(t, f.Chmod(0o600))
	require.NoError(t, f.Close())

	require.NoError(t, os.Mkdir(m.path("gone"), 0o755))
	gone, err := os.Open(m.path("gone"))
	require.NoError(t, err)
	defer gone.Close()
	require.NoError(t, os.Remove(m.path("gone")))
	_, err = os.Create(fmt.Sprintf("/proc/self/fd/%d/x", gone.Fd()))
	require.ErrorIs(t, err, unix.ENOENT)
	_, err = unix.Openat(int(gone.Fd()), ".", unix.O_TMPFILE|unix.O_RDWR, 0o600)
	require.ErrorIs(t, err, unix.EPERM)
	names, err := gone.Readdirnames(0)
	require.ErrorIs(t, err, unix.ENOENT, "as the kernel's file systems say")
	require.Empty(t, names)
	require.NoError(t, gone.Close())

	// RELEASE and FORGET come after close(2) returned.
	require.Eventually(t, func() bool {
		after := m.vol.Statfs()
		return after.BlocksFree == before.BlocksFree && after.InodesFree == before.InodesFree
	}, waitFor, tick, "blocks and inodes did not come back")
}

func TestHardLinks(t *testing.T) {
	m := newMount(t, Options{})
	write(t, m.path("one"), "same")
	require.NoError(t, os.Mkdir(m.path("dir"), 0o755))
	require.NoError(t, os.Link(m.path("one"), m.path("two")))
	require.NoError(t, os.Link(m.path("two"), m.path("dir", "three")))
	require.ErrorIs(t, os.Link(m.path("one"), m.path("two")), unix.EEXIST)
	require.ErrorIs(t, os.Link(m.path("dir"), m.path("dir2")), unix.EPERM)
	st := stat(t, m.path("one"))
	require.EqualValues(t, 3, st.Nlink)
	require.Equal(t, st.Ino, stat(t, m.path("dir", "three")).Ino)
	require.NoError(t, os.Chmod(m.path("two"), 0o600))
	require.EqualValues(t, unix.S_IFREG|0o600, stat(t, m.path("one")).Mode)
	require.NoError(t, os.Remove(m.path("one")))
	require.EqualValues(t, 2, stat(t, m.path("two")).Nlink)
	require.Equal(t, "same", read(t, m.path("dir", "three")))
}

func TestSpecialFiles(t *testing.T) {
	m := newMount(t, Options{})
	for _, c := range []struct {
		name string
		mode uint32
		dev  uint64
	}{
		{"null", unix.S_IFCHR | 0o666, unix.Mkdev(1, 3)},
		{"block", unix.S_IFBLK | 0o600, unix.Mkdev(4095, 0xfffff)},
		{"large", unix.S_IFCHR | 0o600, unix.Mkdev(300, 70000)},
		{"fifo", unix.S_IFIFO | 0o644, 0},
		{"socket", unix.S_IFSOCK | 0o644, 0},
		{"file", unix.S_IFREG | 0o644, 0},
	} {
		require.NoError(t, unix.Mknod(m.path(c.name), c.mode, int(c.dev)), c.name)
		st := stat(t, m.path(c.name))
		require.Equal(t, c.mode&^0o022, st.Mode, c.name)
		require.Equal(t, c.dev, st.Rdev, c.name)
	}
	write(t, m.path("null"), "a device node of root's mount works")
	require.Empty(t, read(t, m.path("null")))

	long := "/" + fmt.Sprintf("%04000d", 7)
	for i, target := range []string{"x", "../over/there", long} {
		name := m.path(fmt.Sprint("link", i))
		require.NoError(t, os.Symlink(target, name))
		got, err := os.Readlink(name)
		require.NoError(t, err)
		require.Equal(t, target, got)
		require.EqualValues(t, len(target), stat(t, name).Size)
		require.EqualValues(t, unix.S_IFLNK|0o777, stat(t, name).Mode)
	}
}

// TestSetgidDirectory: what is made in a set-group-ID directory has its group, and new directories inherit the bit.
func TestSetgidDirectory(t *testing.T) {
	m := newMount(t, Options{})
	dir := m.path("shared")
	require.NoError(t, os.Mkdir(dir, 0o755))
	require.NoError(t, os.Chown(dir, 12, 3456))
	require.NoError(t, os.Chmod(dir, 0o775|os.ModeSetgid))
	write(t, dir+"/file", "")
	require.NoError(t, os.Mkdir(dir+"/sub", 0o755))
	require.NoError(t, os.Symlink("x", dir+"/link"))
	require.NoError(t, unix.Mkfifo(dir+"/fifo", 0o644))
	for _, name := range []string{"file", "sub", "link", "fifo"} {
		require.EqualValues(t, 3456, stat(t, dir+"/"+name).Gid, name)
		require.EqualValues(t, 0, stat(t, dir+"/"+name).Uid, name)
	}
	require.EqualValues(t, unix.S_IFDIR|0o2755, stat(t, dir+"/sub").Mode)
	require.EqualValues(t, unix.S_IFREG|0o644, stat(t, dir+"/file").Mode)
}

// TestWhiteout: what is left behind is what the kernel's ext4 leaves, and an overlay can live on it.
func TestWhiteout(t *testing.T) {
	m := newMount(t, Options{})
	try := func(top string) (out []string) {
		see := func(names ...string) {
			for _, n := range names {
				st := stat(t, top+"/"+n)
				out = append(out, fmt.Sprintf("%s %o %d %d:%d links %d", n, st.Mode, st.Rdev, st.Uid, st.Gid, st.Nlink))
			}
		}
		rename := func(from, to string, flags uint) {
			err := unix.Renameat2(unix.AT_FDCWD, top+"/"+from, unix.AT_FDCWD, top+"/"+to, unix.RENAME_WHITEOUT|flags)
			out = append(out, errnoOf(err))
		}
		require.NoError(t, os.Mkdir(top+"/w", 0o755))
		require.NoError(t, os.Mkdir(top+"/w/d", 0o755))
		write(t, top+"/w/a", "a")
		write(t, top+"/w/b", "b")
		rename("w/a", "w/d/a", 0)
		see("w/a", "w/d/a")
		rename("w/b", "w/d/a", unix.RENAME_NOREPLACE)
		rename("w/b", "w/d/a", 0)
		see("w/b", "w/d/a")
		rename("w/d", "e", 0)
		see("w/d", "e", "w")
		rename("w/d", "e", 0)
		rename("w/none", "f", 0)
		return out
	}
	ours := try(m.dir)
	img := disktest.Make(t, "32M")
	disktest.Mount(t, img, "", func(dir string) { require.Equal(t, try(dir), ours) })

	for _, d := range []string{"up", "work"} {
		require.NoError(t, os.Mkdir(m.path(d), 0o755))
	}
	low, over := t.TempDir(), t.TempDir()
	write(t, low+"/f", "from below")
	if err := unix.Mount("overlay", over, "overlay", 0, "lowerdir="+low+",upperdir="+m.path("up")+",workdir="+m.path("work")); err != nil {
		t.Skipf("SKIPPED: the kernel mounts no overlay here: %v", err)
	}
	defer func() { require.NoError(t, unix.Unmount(over, 0)) }()
	require.NoError(t, os.Rename(over+"/f", over+"/g"))
	require.NoFileExists(t, over+"/f")
	require.Equal(t, "from below", read(t, over+"/g"))
	require.EqualValues(t, unix.S_IFCHR, stat(t, m.path("up", "f")).Mode&unix.S_IFMT)
}
