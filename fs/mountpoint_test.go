package fs

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
	"github.com/lanefs/lanefs/fs/uring/uringtest"
)

func TestMountFlags(t *testing.T) {
	flags, rest, err := mountFlags([]string{"nosuid", "noexec", "ro", "rw", "context=a:b"})
	require.NoError(t, err)
	require.EqualValues(t, unix.MS_NOSUID|unix.MS_NOEXEC, flags)
	require.Equal(t, []string{"context=a:b"}, rest)
	require.ElementsMatch(t, []string{"nosuid", "noexec"}, flagNames(flags))
	_, _, err = mountFlags([]string{"shiny"})
	require.ErrorContains(t, err, `unknown mount option "shiny"`)
}

func TestBadMountPoints(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "")
	for dir, want := range map[string]string{
		filepath.Join(t.TempDir(), "none"): "create it first",
		file:                               "is not a directory",
	} {
		_, err := Mount(dir, nil, Options{})
		require.ErrorContains(t, err, want)
	}
}

// TestMountTwice: one mount does not hide another.
func TestMountTwice(t *testing.T) {
	m := newMount(t, Options{})
	_, err := Mount(m.dir, m.vol, Options{})
	require.ErrorContains(t, err, "is busy")
	write(t, m.path("file"), "the first one is well")
}

func TestUnmountBusy(t *testing.T) {
	m := newMount(t, Options{})
	f, err := os.Create(m.path("open"))
	require.NoError(t, err)
	require.ErrorIs(t, m.srv.Unmount(), ErrBusy)
	_, err = f.WriteString("still there")
	require.NoError(t, err)
	require.NoError(t, f.Close())
	m.unmount()
	require.NoError(t, m.srv.Unmount(), "twice is no error")
	require.NoFileExists(t, m.path("open"))
}

// TestUnmountedByOthers: umount(8) ends the server too.
func TestUnmountedByOthers(t *testing.T) {
	m := newMount(t, Options{})
	write(t, m.path("file"), "x")
	require.NoError(t, unix.Unmount(m.dir, 0))
	m.srv.Wait()
	m.unmount()
}

func TestReadOnly(t *testing.T) {
	m := newMount(t, Options{ReadOnly: true})
	require.ErrorIs(t, os.WriteFile(m.path("file"), nil, 0o644), unix.EROFS)
	require.ErrorIs(t, os.Chmod(m.dir, 0o700), unix.EROFS)
}

// TestMountShown: the table of mounts shows source and type.
func TestMountShown(t *testing.T) {
	m := newMount(t, Options{})
	at, err := MountedAt(m.dir)
	require.NoError(t, err)
	require.Equal(t, "fuse.lanefs", at.FSType)
	require.EqualValues(t, 2, stat(t, m.dir).Ino)
	var st unix.Statfs_t
	require.NoError(t, unix.Statfs(m.dir, &st))
	require.EqualValues(t, 255, st.Namelen)
	require.EqualValues(t, m.vol.BlockSize(), st.Bsize)
	require.Equal(t, m.vol.Statfs().BlocksFree, st.Bfree)
	require.NotZero(t, st.Files)
}

// TestDeadMount: the mount of a server that was killed is unmounted by the next mount.
func TestDeadMount(t *testing.T) {
	needFuse(t)
	dir := t.TempDir()
	image := t.TempDir()
	cmd := helper(t, "serve", dir, image)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { Detach(dir) })
	line, _ := bufio.NewReader(out).ReadString('\n')
	require.Equal(t, "mounted\n", line)
	require.NoError(t, cmd.Process.Kill())
	cmd.Wait()
	require.True(t, Dead(dir))
	require.NoError(t, CheckMountPoint(dir))
	require.NoFileExists(t, filepath.Join(dir, "lost+found"))
}

// serveHelper mounts a volume and waits to be killed or for its input to end.
func serveHelper(args []string) {
	vol, err := openForHelper(args[1])
	if err != nil {
		die("%v", err)
	}
	s, err := Mount(args[0], vol, Options{})
	if err != nil {
		die("%v", err)
	}
	println0("mounted")
	s.Wait()
}

func println0(s string) { os.Stdout.WriteString(s + "\n") }

// TestUnprivileged mounts and uses a volume as nobody, through fusermount3. In a mount namespace of its own, where
// /dev/fuse is open to everyone as it is on any desktop but not on every test machine.
func TestUnprivileged(t *testing.T) {
	t.Run("fuse", func(t *testing.T) { unprivileged(t) })
	t.Run("io_uring", func(t *testing.T) {
		uringtest.Enable(t)
		unprivileged(t, "io_uring")
	})
}

func unprivileged(t *testing.T, transport ...string) {
	needFuse(t)
	for _, tool := range []string{"fusermount3", "unshare", "setpriv", "mount", "mknod"} {
		needTool(t, tool)
	}
	root, err := MountedAt("/")
	require.NoError(t, err)
	if root == nil {
		t.Skip("SKIPPED: / is no mount here, as in a chroot: a mount namespace cannot be made private")
	}
	dir, err := os.MkdirTemp("", "lanefs-fs-nobody-*")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	for _, d := range []string{"mnt", "image", "dev"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, d), 0o755))
		require.NoError(t, os.Chown(filepath.Join(dir, d), nobody, nobody))
	}
	self, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "test"), self, 0o755))
	const script = `set -e; cd "$0"
mount --make-rprivate /
` + disktest.LetGo + `mount -t tmpfs -o mode=755 none dev
mknod -m 666 dev/fuse c 10 229
mount --bind dev/fuse /dev/fuse
exec setpriv --reuid=65534 --regid=65534 --clear-groups ./test "$0/mnt" "$0/image" "$@"`
	cmd := exec.Command("unshare", append([]string{"--mount", "sh", "-c", script, dir}, transport...)...)
	cmd.Env = append(os.Environ(), helperEnv+"=unprivileged")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func unprivilegedHelper(args []string) {
	vol, err := openForHelper(args[1])
	if err != nil {
		die("%v", err)
	}
	opt := Options{FSName: "some,image", IOUring: IOUringOff}
	if len(args) > 2 {
		opt.IOUring = IOUringOn
	}
	s, err := Mount(args[0], vol, opt)
	if err != nil {
		die("%v", err)
	}
	if name, why := s.Transport(); opt.IOUring == IOUringOn && why != nil {
		die("%s: %v", name, why)
	}
	path := filepath.Join(args[0], "dir", "file")
	if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
		die("%v", err)
	}
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		die("%v", err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "mine" {
		die("%q, %v", b, err)
	}
	if err := unix.Mknod(path+"null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != unix.EPERM {
		die("mknod: %v", err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(args[0], &st); err != nil || st.Flags&(unix.ST_NOSUID|unix.ST_NODEV) != unix.ST_NOSUID|unix.ST_NODEV {
		die("the mount is not nosuid and nodev: flags %#x, %v", st.Flags, err)
	}
	if _, err := Mount(filepath.Dir(args[0]), vol, Options{}); err == nil || !strings.Contains(err.Error(), "must belong to the user that mounts") {
		die("a mount on root's directory: %v", err)
	}
	f, err := os.Open(path)
	if err != nil {
		die("%v", err)
	}
	if err := s.Unmount(); err == nil {
		die("unmounted with an open file")
	}
	f.Close()
	if err := s.Unmount(); err != nil {
		die("%v", err)
	}
	if err := vol.Close(); err != nil {
		die("%v", err)
	}
}
