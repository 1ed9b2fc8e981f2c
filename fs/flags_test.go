package fs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// TestFlagsAreAChange: the change time is new, and the kernel is notified.
func TestFlagsAreAChange(t *testing.T) {
	m := newMount(t, Options{})
	write(t, m.path("file"), "x")
	for _, path := range []string{m.path("file"), m.dir} {
		before := stat(t, path).Ctim
		require.NoError(t, setFlags(path, ext4.FlagNoDump))
		flagged := stat(t, path).Ctim
		require.NotEqual(t, before, flagged)
		x := make([]byte, sizeFsxattr)
		require.NoError(t, doIoctl(path, iocFSGetXattr, x))
		require.NoError(t, doIoctl(path, iocFSSetXattr, x))
		require.NotEqual(t, flagged, stat(t, path).Ctim)
	}
}

// forbidden is what a flag may forbid, each tried on a file f and a directory d with a file "in" of its own.
var forbidden = []struct {
	name string
	do   func(dir string) error
}{

	{"open for writing", func(dir string) error { return opens(dir+"/f", unix.O_WRONLY) }},
	{"open for appending", func(dir string) error { return opens(dir+"/f", unix.O_WRONLY|unix.O_APPEND) }},
	{"open cut short", func(dir string) error { return opens(dir+"/f", unix.O_WRONLY|unix.O_APPEND|unix.O_TRUNC) }},
	{"open for reading", func(dir string) error { return opens(dir+"/f", unix.O_RDONLY) }},
	{"append", func(dir string) error {
		f, err := os.OpenFile(dir+"/f", os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return err
		}
		_, err = f.Write([]byte("more"))
		f.Close()
		return err
	}},
	{"fallocate", func(dir string) error {
		f, err := os.OpenFile(dir+"/f", os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		return unix.Fallocate(int(f.Fd()), 0, 0, 10000)
	}},
	{"punch", func(dir string) error {
		f, err := os.OpenFile(dir+"/f", os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 5)
	}},
	{"truncate", func(dir string) error { return os.Truncate(dir+"/f", 3) }},
	{"chmod", func(dir string) error { return unix.Chmod(dir+"/f", 0o600) }},
	{"chmod of the directory", func(dir string) error { return unix.Chmod(dir+"/d", 0o700) }},
	{"chown", func(dir string) error { return unix.Chown(dir+"/f", 1, 1) }},
	{"utimes", func(dir string) error { return unix.Utimes(dir+"/f", []unix.Timeval{{Sec: 1}, {Sec: 2}}) }},
	{"touch", func(dir string) error { return unix.UtimesNanoAt(unix.AT_FDCWD, dir+"/f", nil, 0) }},
	{"setxattr", func(dir string) error { return unix.Setxattr(dir+"/f", "user.x", []byte("x"), 0) }},
	{"setxattr trusted", func(dir string) error { return unix.Setxattr(dir+"/f", "trusted.x", []byte("x"), 0) }},
	{"set ACL", func(dir string) error {
		return unix.Setxattr(dir+"/f", ext4.XattrACLAccess, []byte("\x02\x00\x00\x00"+
			"\x01\x00\x06\x00\xff\xff\xff\xff\x04\x00\x04\x00\xff\xff\xff\xff\x20\x00\x04\x00\xff\xff\xff\xff"), 0)
	}},
	{"link", func(dir string) error { return os.Link(dir+"/f", dir+"/g") }},
	{"link into", func(dir string) error { return os.Link(dir+"/other", dir+"/d/g") }},
	{"unlink", func(dir string) error { return unix.Unlink(dir + "/f") }},
	{"unlink in", func(dir string) error { return unix.Unlink(dir + "/d/in") }},
	{"rmdir", func(dir string) error { os.Remove(dir + "/d/in"); return unix.Rmdir(dir + "/d") }},
	{"rename", func(dir string) error { return unix.Rename(dir+"/f", dir+"/g") }},
	{"rename over", func(dir string) error { return unix.Rename(dir+"/other", dir+"/f") }},
	{"rename of the directory", func(dir string) error { return unix.Rename(dir+"/d", dir+"/e") }},
	{"rename out", func(dir string) error { return unix.Rename(dir+"/d/in", dir+"/out") }},
	{"rename into", func(dir string) error { return unix.Rename(dir+"/other", dir+"/d/new") }},
	{"create in", func(dir string) error { return opens(dir+"/d/new", unix.O_WRONLY|unix.O_CREAT) }},
	{"mkdir in", func(dir string) error { return unix.Mkdir(dir+"/d/new", 0o755) }},
	{"symlink in", func(dir string) error { return unix.Symlink("x", dir+"/d/new") }},
	{"mknod in", func(dir string) error { return unix.Mknod(dir+"/d/new", unix.S_IFIFO|0o644, 0) }},
	{"tmpfile in", func(dir string) error { return opens(dir+"/d", unix.O_RDWR|unix.O_TMPFILE) }},
	{"write in", func(dir string) error { return opens(dir+"/d/in", unix.O_WRONLY|unix.O_TRUNC) }},
	{"nodump besides", func(dir string) error {
		arg := make([]byte, 8)
		if err := doIoctl(dir+"/f", unix.FS_IOC_GETFLAGS, arg); err != nil {
			return err
		}
		arg[0] |= ext4.FlagNoDump
		return doIoctl(dir+"/f", unix.FS_IOC_SETFLAGS, arg)
	}},
	{"topdir for a file", func(dir string) error { return setFlags(dir+"/f", ext4.FlagTopDir) }},
	{"a reserved flag", func(dir string) error { return setFlags(dir+"/f", 1<<31) }},
}

// errnoOf is an error without the names in it.
func errnoOf(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return unix.ErrnoName(errno)
	}
	return fmt.Sprint(err)
}

func opens(path string, flags int) error {
	fd, err := unix.Open(path, flags, 0o644)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// tryForbidden tries everything with each flag and reports the errors.
func tryForbidden(t *testing.T, top string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for name, flags := range map[string]uint32{"none": 0, "immutable": ext4.FlagImmutable, "append-only": ext4.FlagAppend} {
		for _, op := range forbidden {
			dir := filepath.Join(top, "try")
			require.NoError(t, os.MkdirAll(dir+"/d", 0o755))
			for _, f := range []string{"/f", "/other", "/d/in"} {
				write(t, dir+f, "content")
			}
			require.NoError(t, setFlags(dir+"/f", flags))
			require.NoError(t, setFlags(dir+"/d", flags))
			out[name+": "+op.name] = errnoOf(op.do(dir))
			require.NoError(t, filepath.Walk(dir, func(p string, fi os.FileInfo, err error) error {
				if err == nil && (fi.IsDir() || fi.Mode().IsRegular()) {
					err = setFlags(p, 0)
				}
				return err
			}), "%s: %s", name, op.name)
			require.NoError(t, os.RemoveAll(dir))
		}
	}
	return out
}

// TestFlags: what a flag forbids it forbids as in the kernel's ext4, with the same errors.
func TestFlags(t *testing.T) {
	m := newMount(t, Options{})
	ours := tryForbidden(t, m.dir)
	img := disktest.Make(t, "32M")
	disktest.Mount(t, img, "", func(dir string) { require.Equal(t, tryForbidden(t, dir), ours) })
}

// TestFlagsKeepDirty: what was stored in a memory map, or in the write-back cache, before a file became immutable or append-only is there afterwards.
func TestFlagsKeepDirty(t *testing.T) {
	for _, o := range []Options{{}, {WriteBack: true}} {
		m := newMount(t, o)
		for name, set := range map[string]func(path string) error{
			"immutable":   func(path string) error { return setFlags(path, ext4.FlagImmutable) },
			"append-only": func(path string) error { return setFlags(path, ext4.FlagAppend) },
			"by fsxattr": func(path string) error {
				arg := make([]byte, sizeFsxattr)
				arg[0] = 0x8
				return doIoctl(path, iocFSSetXattr, arg)
			},
		} {
			path := m.path(name)
			write(t, path, strings.Repeat("x", 8192))
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			require.NoError(t, err)
			defer f.Close()
			p, err := unix.Mmap(int(f.Fd()), 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			require.NoError(t, err)
			_, err = f.WriteAt([]byte("written"), 100)
			require.NoError(t, err)
			copy(p, "stored")
			copy(p[4096:], "stored")
			require.NoError(t, set(path), name)
			require.NoError(t, unix.Msync(p, unix.MS_SYNC), name)
			require.NoError(t, f.Sync(), name)
			require.NoError(t, unix.Munmap(p))
			got := make([]byte, 8192)
			n, err := m.srv.nodes.get(stat(t, path).Ino).in.Load(0, ext4.Content{Bytes: got})
			require.NoError(t, err)
			require.Equal(t, 8192, n)
			require.Equal(t, "stored", string(got[:6]), name)
			require.Equal(t, "written", string(got[100:107]), name)
			require.Equal(t, "stored", string(got[4096:4102]), name)
			require.NoError(t, setFlags(path, 0))
		}
	}
}

// TestAppendOnlyWrittenBack: what is appended to an append-only file is there, also by the write-back cache, which hands over whole pages; what was there stays.
func TestAppendOnlyWrittenBack(t *testing.T) {
	for _, o := range []Options{{}, {WriteBack: true}} {
		m := newMount(t, o)
		path := m.path("log")
		write(t, path, "first\n")
		old, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		require.NoError(t, err)
		defer old.Close()
		plain, err := os.OpenFile(path, os.O_RDWR, 0)
		require.NoError(t, err)
		defer plain.Close()
		require.NoError(t, setFlags(path, ext4.FlagAppend))
		want := "first\n"
		for i := range 20 {
			f := old
			if i%2 == 0 {
				f, err = os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
				require.NoError(t, err)
			}
			line := strings.Repeat(string(rune('a'+i)), 700*i%5000) + "\n"
			_, err = f.WriteString(line)
			require.NoError(t, err)
			if want += line; i%3 == 0 {
				require.NoError(t, f.Sync())
			}
			if f != old {
				require.NoError(t, f.Close())
			}
		}
		require.NoError(t, old.Sync())
		stored := func() string {
			got := make([]byte, len(want)+1)
			n, err := m.srv.nodes.get(stat(t, path).Ino).in.Load(0, ext4.Content{Bytes: got})
			require.NoError(t, err)
			return string(got[:n])
		}
		require.Equal(t, want, stored())
		_, err = plain.WriteAt([]byte("over"), 0)
		if err == nil {
			err = plain.Sync()
		}
		require.Error(t, err)
		require.Equal(t, want, stored())
		require.NoError(t, setFlags(path, 0))
	}
}

// TestFlagsOfOthers: which users may change which flags.
func TestFlagsOfOthers(t *testing.T) {
	skipRaced(t)
	try := func(top string) (out []string) {
		for _, owner := range []int{0, nobody} {
			path := filepath.Join(top, fmt.Sprint("of", owner))
			write(t, path, "x")
			require.NoError(t, os.Chown(path, owner, owner))
			f, err := os.Open(path)
			require.NoError(t, err)
			defer f.Close()
			for _, flags := range []uint32{ext4.FlagNoAtime, ext4.FlagImmutable, ext4.FlagAppend, ext4.FlagNoDump} {
				cmd := helper(t, "setflags", "/proc/self/fd/3", fmt.Sprint(flags)) // user nobody may not search the directories of the path
				cmd.ExtraFiles = []*os.File{f}
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
				said, err := cmd.Output()
				require.NoError(t, err)
				out = append(out, fmt.Sprintf("%d %#x: %s", owner, flags, said))
			}
		}
		return out
	}
	m := newMount(t, Options{})
	ours := try(m.dir)
	img := disktest.Make(t, "32M")
	disktest.Mount(t, img, "", func(dir string) { require.Equal(t, try(dir), ours) })
}

func setFlagsHelper(args []string) {
	flags, _ := strconv.Atoi(args[1])
	fmt.Print(setFlags(args[0], uint32(flags)))
}

// TestProject: files have projects, new files inherit their directory's, and the kernel's ext4 reads the same.
func TestProject(t *testing.T) {
	m := newMount(t, Options{}, "-O", "project,^quota")
	project := func(path string, id uint32, x uint32) error {
		arg := make([]byte, sizeFsxattr)
		if err := doIoctl(path, iocFSGetXattr, arg); err != nil {
			return err
		}
		*(*uint32)(unsafe.Pointer(&arg[0])) |= x
		*(*uint32)(unsafe.Pointer(&arg[12])) = id
		return doIoctl(path, iocFSSetXattr, arg)
	}
	get := func(path string) (id, x uint32) {
		arg := make([]byte, sizeFsxattr)
		require.NoError(t, doIoctl(path, iocFSGetXattr, arg))
		return *(*uint32)(unsafe.Pointer(&arg[12])), *(*uint32)(unsafe.Pointer(&arg[0]))
	}
	const inherit = 0x200
	require.NoError(t, os.Mkdir(m.path("p"), 0o755))
	require.NoError(t, project(m.path("p"), 42, inherit))
	write(t, m.path("p", "f"), "x")
	require.NoError(t, os.Mkdir(m.path("p", "sub"), 0o755))
	write(t, m.path("p", "sub", "g"), "x")
	write(t, m.path("out"), "x")
	require.NoError(t, project(m.path("out"), 7, 0))
	require.ErrorIs(t, project(m.path("out"), 7, inherit), unix.EOPNOTSUPP, "a file has no children to inherit it")
	require.ErrorIs(t, os.Rename(m.path("out"), m.path("p", "in")), unix.EXDEV)
	require.ErrorIs(t, os.Link(m.path("out"), m.path("p", "in")), unix.EXDEV)
	require.NoError(t, project(m.path("out"), 42, 0))
	require.NoError(t, os.Rename(m.path("out"), m.path("p", "in")))
	see := func(dir string) (out []string) {
		for _, f := range []string{"p", "p/f", "p/sub", "p/sub/g", "p/in"} {
			id, x := get(filepath.Join(dir, f))
			out = append(out, fmt.Sprintf("%s %d %#x", f, id, x))
		}
		return out
	}
	ours := see(m.dir)
	require.Equal(t, []string{"p 42 0x200", "p/f 42 0x0", "p/sub 42 0x200", "p/sub/g 42 0x0", "p/in 42 0x0"}, ours)
	m.unmount()
	disktest.Mount(t, m.volume.path, "ro", func(dir string) { require.Equal(t, see(dir), ours) })
}

// TestNoProject: without the feature there is project 0 only.
func TestNoProject(t *testing.T) {
	m := newMount(t, Options{})
	write(t, m.path("f"), "x")
	arg := make([]byte, sizeFsxattr)
	require.NoError(t, doIoctl(m.path("f"), iocFSGetXattr, arg))
	require.NoError(t, doIoctl(m.path("f"), iocFSSetXattr, arg))
	arg[12] = 1
	require.ErrorIs(t, doIoctl(m.path("f"), iocFSSetXattr, arg), unix.EOPNOTSUPP)
}
