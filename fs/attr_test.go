package fs

import (
	"math"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
)

const (
	waitFor = time.Minute
	tick    = 10 * time.Millisecond
	nobody  = 65534
)

func TestRdev(t *testing.T) {
	for _, c := range []struct{ major, minor, dev uint32 }{
		{0, 0, 0}, {1, 3, 0x103}, {8, 255, 0x8ff}, {8, 256, 0x100800}, {0xfff, 0xfffff, 0xffffffff},
	} {
		require.Equal(t, c.dev, rdev(c.major, c.minor))
		major, minor := splitRdev(c.dev)
		require.Equal(t, []uint32{c.major, c.minor}, []uint32{major, minor})
	}
}

func TestWithoutPriv(t *testing.T) {
	root, member := &fuse.Caller{}, &fuse.Caller{Owner: fuse.Owner{Uid: 1000, Gid: 50}}
	unknownCaller := &fuse.Caller{Owner: fuse.Owner{Uid: 1000, Gid: 1000}, Pid: math.MaxUint32} // of no thread, so of no other group
	for _, k := range []struct{ mode, root, member, unknownCaller uint32 }{
		{0o104755, 0o100755, 0o100755, 0o100755},
		{0o106755, 0o100755, 0o100755, 0o100755},
		{0o102755, 0o100755, 0o100755, 0o100755},
		{0o102745, 0o102745, 0o102745, 0o100745},
		{0o106644, 0o102644, 0o102644, 0o100644},
		{0o101777, 0o101777, 0o101777, 0o101777},
		{0o046777, 0o046777, 0o046777, 0o046777},
	} {
		require.Equal(t, k.root, withoutPriv(k.mode, 50, root), "%o", k.mode)
		require.Equal(t, k.member, withoutPriv(k.mode, 50, member), "%o", k.mode)
		require.Equal(t, k.unknownCaller, withoutPriv(k.mode, 50, unknownCaller), "%o", k.mode)
	}
}

// The groups of this process in /proc are those of getgroups(2).
func TestInGroup(t *testing.T) {
	groups, err := unix.Getgroups()
	require.NoError(t, err)
	c := &fuse.Caller{Owner: fuse.Owner{Gid: 4242}, Pid: uint32(os.Getpid())}
	for _, g := range groups {
		require.True(t, inGroup(c, uint32(g)), "%d of %v", g, groups)
	}
	require.True(t, inGroup(c, 4242))
	require.False(t, inGroup(c, 4243))
}

// TestGroupsOfOneThatEnds: the read of /proc may wait for the request that asks, which is answered.
func TestGroupsOfOneThatEnds(t *testing.T) {
	answered := make(chan struct{})
	read, patience := readStatus, statusPatience
	readStatus, statusPatience = func(string) ([]byte, error) {
		<-answered
		return nil, nil
	}, time.Millisecond
	t.Cleanup(func() { readStatus, statusPatience = read, patience })
	require.False(t, inGroup(&fuse.Caller{Pid: 1}, 7))
	close(answered)
}

// TestMay: reserved blocks are for root, and for the user and the group that the superblock names.
func TestMay(t *testing.T) {
	s := &Server{reservedUID: 7, reservedGID: 8}
	for _, k := range []struct {
		uid, gid, pid uint32
		may           bool
	}{
		{0, 0, 1, true}, {7, 1000, 1, true}, {1000, 8, 1, true}, {1000, 1000, math.MaxUint32, false}, {0, 0, 0, false},
	} {
		c := &fuse.Caller{Owner: fuse.Owner{Uid: k.uid, Gid: k.gid}, Pid: k.pid}
		require.Equal(t, k.may, s.may(c) == ext4.UseReserved, "%+v", k)
	}
}

func TestTimes(t *testing.T) {
	modes(t, func(t *testing.T, m *mounted) {
		path := m.path("file")
		write(t, path, "x")
		for _, c := range []struct{ set, want time.Time }{
			{time.Unix(-1, 1), time.Unix(-1, 1)},
			{time.Date(1901, 12, 14, 0, 0, 0, 5, time.UTC), time.Date(1901, 12, 14, 0, 0, 0, 5, time.UTC)},
			{time.Date(1800, 1, 1, 0, 0, 0, 5, time.UTC), time.Unix(-1<<31, 0)},
			{time.Unix(0, 999999999), time.Unix(0, 999999999)},
			{time.Date(2038, 1, 19, 3, 14, 8, 123456789, time.UTC), time.Date(2038, 1, 19, 3, 14, 8, 123456789, time.UTC)},
			{time.Date(2446, 5, 10, 22, 38, 54, 1, time.UTC), time.Date(2446, 5, 10, 22, 38, 54, 1, time.UTC)},
			{time.Date(2446, 5, 10, 22, 38, 55, 1, time.UTC), time.Date(2446, 5, 10, 22, 38, 55, 0, time.UTC)},
			{time.Date(2500, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2446, 5, 10, 22, 38, 55, 0, time.UTC)},
		} {
			ts := []unix.Timespec{{Sec: c.set.Unix(), Nsec: int64(c.set.Nanosecond())}, {Sec: 100, Nsec: 200}}
			require.NoError(t, unix.UtimesNanoAt(unix.AT_FDCWD, path, ts, 0))
			st := stat(t, path)
			require.Equal(t, unix.Timespec{Sec: c.want.Unix(), Nsec: int64(c.want.Nanosecond())}, st.Atim, c.set.String())
			require.Equal(t, unix.Timespec{Sec: 100, Nsec: 200}, st.Mtim)
		}
		before := time.Now().Add(-time.Second)
		ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Nsec: unix.UTIME_NOW}}
		atime := stat(t, path).Atim
		require.NoError(t, unix.UtimesNanoAt(unix.AT_FDCWD, path, ts, 0))
		st := stat(t, path)
		require.Equal(t, atime, st.Atim, "UTIME_OMIT")
		require.True(t, time.Unix(st.Mtim.Unix()).After(before), "UTIME_NOW")
		require.True(t, time.Unix(st.Ctim.Unix()).After(before))

		require.NoError(t, os.Symlink("file", m.path("link")))
		require.NoError(t, unix.UtimesNanoAt(unix.AT_FDCWD, m.path("link"), []unix.Timespec{{Sec: 1}, {Sec: 2}},
			unix.AT_SYMLINK_NOFOLLOW))
		require.EqualValues(t, 2, stat(t, m.path("link")).Mtim.Sec)
		require.NotEqualValues(t, 2, stat(t, path).Mtim.Sec)
	})
}

func TestBirthTime(t *testing.T) {
	m := newMount(t, Options{})
	before := time.Now().Add(-time.Second)
	write(t, m.path("file"), "x")
	require.NoError(t, os.Chtimes(m.path("file"), time.Unix(5, 0), time.Unix(6, 0)))
	var st unix.Statx_t
	require.NoError(t, unix.Statx(unix.AT_FDCWD, m.path("file"), 0, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st))
	require.NotZero(t, st.Mask&unix.STATX_BTIME)
	require.True(t, time.Unix(st.Btime.Sec, int64(st.Btime.Nsec)).After(before))
	require.EqualValues(t, 6, st.Mtime.Sec)
	require.EqualValues(t, 1, st.Size)
}

// TestMtime: every change of the contents moves the time of modification.
func TestMtime(t *testing.T) {
	modes(t, func(t *testing.T, m *mounted) {
		path := m.path("file")
		write(t, path, "contents")
		for name, change := range map[string]func() error{
			"write": func() error {
				f, err := os.OpenFile(path, os.O_WRONLY, 0)
				if err != nil {
					return err
				}
				defer f.Close()
				_, err = f.Write([]byte("y"))
				return err
			},
			"truncate":   func() error { return os.Truncate(path, 3) },
			"open trunc": func() error { f, err := os.Create(path); f.Close(); return err },
		} {
			require.NoError(t, os.Chtimes(path, time.Unix(5, 0), time.Unix(6, 0)))
			require.NoError(t, change())
			require.NotEqualValues(t, 6, stat(t, path).Mtim.Sec, name)
		}
		require.NoError(t, os.Mkdir(m.path("dir"), 0o755))
		require.NoError(t, os.Chtimes(m.path("dir"), time.Unix(5, 0), time.Unix(6, 0)))
		write(t, m.path("dir", "new"), "")
		require.NotEqualValues(t, 6, stat(t, m.path("dir")).Mtim.Sec)
	})
}

func TestAtime(t *testing.T) {
	m := newMount(t, Options{})
	path := m.path("file")
	write(t, path, "x")
	old, recent := time.Now().Add(-48*time.Hour), time.Now().Add(-time.Hour)
	for _, c := range []struct {
		name         string
		atime, mtime time.Time
		moves        bool
	}{
		{"older than the contents", old, recent, true},
		{"a day old", old, old.Add(-time.Hour), true},
	} {
		require.NoError(t, os.Chtimes(path, c.atime, c.mtime))
		ctime := stat(t, path).Ctim
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECT, 0) // past the kernel's pages
		require.NoError(t, err)
		_, err = unix.Pread(fd, aligned(4096), 0)
		require.NoError(t, err)
		unix.Close(fd)
		st := stat(t, path)
		require.Equal(t, c.moves, time.Unix(st.Atim.Unix()).After(c.atime.Add(time.Second)), c.name)
		require.Equal(t, ctime, st.Ctim, "reading is no change")
	}
}

func TestChmodChown(t *testing.T) {
	m := newMount(t, Options{})
	path := m.path("file")
	write(t, path, "x")
	for _, mode := range []uint32{0, 0o777, 0o7777, 0o4711, 0o1644, 0o2610} {
		require.NoError(t, unix.Chmod(path, mode))
		require.Equal(t, unix.S_IFREG|mode, stat(t, path).Mode)
	}
	require.NoError(t, unix.Chown(path, 70000, 80000))
	st := stat(t, path)
	require.EqualValues(t, []uint32{70000, 80000}, []uint32{st.Uid, st.Gid})
	require.NoError(t, unix.Chown(path, -1, 9))
	st = stat(t, path)
	require.EqualValues(t, []uint32{70000, 9}, []uint32{st.Uid, st.Gid})
	require.NoError(t, unix.Chmod(path, 0o6755))
	require.NoError(t, unix.Chown(path, 5, -1))
	require.EqualValues(t, unix.S_IFREG|0o755, stat(t, path).Mode, "a new owner does not get the old one's bits")
	require.NoError(t, os.Symlink("file", m.path("link")))
	require.NoError(t, unix.Lchown(m.path("link"), 3, 4))
	require.EqualValues(t, 3, stat(t, m.path("link")).Uid)
	require.EqualValues(t, 5, stat(t, path).Uid)
}

// TestKillPriv: set-ID bits do not survive a change of the contents by an ordinary user, in any way.
func TestKillPriv(t *testing.T) {
	skipRaced(t)
	modes(t, func(t *testing.T, m *mounted) {
		for _, how := range []string{"write", "append", "truncate", "open", "fallocate", "copy", "none"} {
			path := m.path(how)
			write(t, path, "some contents")
			require.NoError(t, unix.Chmod(path, 0o6777))
			require.EqualValues(t, unix.S_IFREG|0o6777, stat(t, path).Mode)
			cmd := helper(t, "change", how, path)
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s: %s", how, out)
			want := uint32(unix.S_IFREG | 0o777)
			if how == "none" {
				want = unix.S_IFREG | 0o6777
			}
			require.Equal(t, want, stat(t, path).Mode, how)
		}
		write(t, m.path("root"), "x")
		require.NoError(t, unix.Chmod(m.path("root"), 0o6777))
		write(t, m.path("root"), "root may")
		require.EqualValues(t, unix.S_IFREG|0o6777, stat(t, m.path("root")).Mode)
	})
}

func changeHelper(args []string) {
	how, path := args[0], args[1]
	flags := map[string]int{"append": os.O_APPEND, "open": os.O_TRUNC}[how]
	f, err := os.OpenFile(path, os.O_RDWR|flags, 0)
	if err == nil {
		switch how {
		case "write", "append":
			_, err = f.Write([]byte("mine"))
		case "truncate":
			err = f.Truncate(2)
		case "fallocate":
			err = unix.Fallocate(int(f.Fd()), 0, 0, 100)
		case "copy":
			off, to := int64(0), int64(5)
			_, err = unix.CopyFileRange(int(f.Fd()), &off, int(f.Fd()), &to, 5, 0)
		}
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		die("%v", err)
	}
}

// TestPermissions: the kernel checks them, also for ordinary users.
func TestPermissions(t *testing.T) {
	m := newMount(t, Options{})
	needTool(t, "setpriv")
	require.NoError(t, os.Mkdir(m.path("dir"), 0o700))
	write(t, m.path("dir", "file"), "secret")
	write(t, m.path("file"), "secret")
	require.NoError(t, os.Chmod(m.path("file"), 0o600))
	as := func(args ...string) error {
		return exec.Command("setpriv", append([]string{"--reuid=65534", "--regid=65534", "--clear-groups", "--"}, args...)...).Run()
	}
	require.Error(t, as("cat", m.path("dir", "file")))
	require.Error(t, as("cat", m.path("file")))
	require.Error(t, as("touch", m.path("new")))
	require.NoError(t, os.Chown(m.path("file"), nobody, nobody))
	require.NoError(t, as("cat", m.path("file")))
	require.NoError(t, os.Chmod(m.dir, 0o777))
	require.NoError(t, as("touch", m.path("new")))
	require.EqualValues(t, nobody, stat(t, m.path("new")).Uid)
	require.NoError(t, os.Chmod(m.dir, 0o777|os.ModeSticky))
	require.Error(t, as("rm", "-f", m.path("dir")))
	write(t, m.path("roots"), "")
	require.Error(t, as("rm", "-f", m.path("roots")), "sticky")
}
