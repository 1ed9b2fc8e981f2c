package claim

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The test binary also takes a claim in another mount namespace: of the value, for writing. It says how that went.
const beTaker = "LANEFS_CLAIM_TAKE"

func TestMain(m *testing.M) {
	if path := os.Getenv(beTaker); path != "" {
		c, err := open(path, true)
		if err != nil {
			os.Stdout.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Stdout.WriteString("taken\n")
		os.Stdin.Read(make([]byte, 1))
		c()
		return
	}
	os.Exit(m.Run())
}

// open opens and claims as the controller does.
func open(path string, write bool) (release func(), err error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, err
	}
	flags := unix.O_RDONLY | unix.O_CLOEXEC
	if write {
		flags = unix.O_RDWR | unix.O_CLOEXEC
	}
	var fd int
	if st.Mode&unix.S_IFMT == unix.S_IFBLK {
		fd, err = Open(path, st.Rdev, flags)
	} else {
		fd, err = unix.Open(path, flags, 0)
	}
	if err != nil {
		return nil, err
	}
	c, err := Take(path, fd, write)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return func() { unix.Close(fd); c.Close() }, nil
}

func newImage(t *testing.T) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(p, nil, 0o600))
	require.NoError(t, os.Truncate(p, 8<<20))
	return p
}

// attach makes a loop device, which is detached at the end of the test, or before.
func attach(t *testing.T, file string, options ...string) (dev string, detach func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: loop devices")
	}
	out, err := exec.Command("losetup", append(append([]string{"-f", "--show"}, options...), file)...).CombinedOutput()
	if err != nil {
		t.Skipf("needs a loop device: %s", out)
	}
	dev = strings.TrimSpace(string(out))
	done := false
	detach = func() {
		if !done {
			done = true
			out, err := exec.Command("losetup", "-d", dev).CombinedOutput()
			require.NoError(t, err, "%s", out)
			// Others take loop devices, too.
			mine := "/sys/block/" + filepath.Base(dev) + "/loop/backing_file"
			require.Eventually(t, func() bool { return readLine(mine) != file }, time.Minute, time.Millisecond)
		}
	}
	t.Cleanup(detach)
	return dev, detach
}

// refused wants a claim to be refused because of by.
func refused(t *testing.T, path string, write bool, by string) {
	t.Helper()
	release, err := open(path, write)
	if err == nil {
		release()
	}
	_, in := IsInUse(err)
	require.True(t, in, "%s, write %v: %v", path, write, err)
	require.ErrorContains(t, err, by)
	require.NotContains(t, err.Error(), "\n")
}

// granted wants a claim to be granted.
func granted(t *testing.T, path string, write bool) (release func()) {
	t.Helper()
	release, err := open(path, write)
	require.NoError(t, err)
	once := sync.OnceFunc(release)
	t.Cleanup(once)
	return once
}

// TestOneWriter goes through the names that one image has: itself, a loop device, a loop device on that one, two beside one
// another. The second is always refused; when the first has gone, it is not.
func TestOneWriter(t *testing.T) {
	image := newImage(t)
	release := granted(t, image, true)
	a, _ := attach(t, image) // the kernel does not ask
	refused(t, a, true, "in use by another")
	refused(t, a, false, "in use by another")
	b, detachB := attach(t, a)
	refused(t, b, true, "in use by another")
	release()

	refused(t, image, true, "in use by /dev/loop") // a or b: the kernel lists loop10 before loop9
	release = granted(t, image, false)
	refused(t, b, true, "in use")
	release()

	refused(t, a, true, b)
	release = granted(t, b, true)
	refused(t, a, true, a)
	refused(t, a, false, a)
	refused(t, image, true, "in use by another")
	refused(t, image, false, "in use by another")
	release()
	detachB()

	release = granted(t, a, true)
	refused(t, image, true, "in use")
	refused(t, image, false, "in use")
	c, detachC := attach(t, image)
	refused(t, c, true, "in use")
	refused(t, c, false, "in use")
	release()
	refused(t, a, true, c) // either could be written to
	refused(t, c, true, a)
	detachC()
	granted(t, a, true)()
}

// TestWindows: loop devices on different parts of a file are different media.
func TestWindows(t *testing.T) {
	image := newImage(t)
	first, _ := attach(t, image, "-o", "1048576", "--sizelimit", "1048576")
	second, _ := attach(t, image, "-o", "2097152")
	over, detach := attach(t, image, "-o", "1572864", "--sizelimit", "1048576")
	refused(t, first, true, over)
	refused(t, second, true, over)
	detach()
	granted(t, first, true)
	granted(t, second, true)
	refused(t, image, true, "in use")
	refused(t, image, false, "in use")
}

// TestPartition: a partition and its disk are one medium, two partitions are not.
func TestPartition(t *testing.T) {
	image := newImage(t)
	// A table of two partitions of type 0x83: at 2048 for 2048 sectors, at 4096 for 4096.
	table := make([]byte, 512)
	copy(table[446:], []byte{0, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0})
	copy(table[462:], []byte{0, 0, 0, 0, 0x83, 0, 0, 0, 0, 16, 0, 0, 0, 16, 0, 0})
	copy(table[510:], []byte{0x55, 0xaa})
	f, err := os.OpenFile(image, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.Write(table)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	disk, _ := attach(t, image, "-P")
	one, two := disk+"p1", disk+"p2"
	if !exists(one) { // a kernel that reads no tables can be told
		exec.Command("partx", "-a", disk).Run()
		t.Cleanup(func() { exec.Command("partx", "-d", disk).Run() })
	}
	for end := time.Now().Add(5 * time.Second); !exists(one) || !exists(two); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Skipf("needs partitions on loop devices, and there is no %s", one)
		}
	}
	w, err := kernel.follow(rdev(t, two))
	require.NoError(t, err)
	require.Len(t, w.extents, 1)
	require.Equal(t, [2]int64{4096 * 512, 8192 * 512}, [2]int64{w.extents[0].Off, w.extents[0].End})
	release := granted(t, one, true)
	granted(t, two, true)
	refused(t, disk, true, "in use")
	refused(t, image, false, "in use")
	beside, detach := attach(t, image, "-o", "1048576", "--sizelimit", "1048576")
	refused(t, beside, true, "in use")
	release()
	refused(t, one, true, beside)
	detach()
	granted(t, one, true)
}

func rdev(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Stat(path, &st))
	return st.Rdev
}

// TestMountedByTheKernel: what the kernel has mounted, by a loop device or a loop device on that, is refused by name.
func TestMountedByTheKernel(t *testing.T) {
	image := newImage(t)
	dev, detach := attach(t, image)
	out, err := exec.Command("mkfs.ext4", "-q", "-F", dev).CombinedOutput()
	if err != nil {
		t.Skipf("needs mkfs.ext4: %v %s", err, out)
	}
	dir := t.TempDir()
	if err := unix.Mount(dev, dir, "ext4", 0, ""); err != nil {
		t.Skipf("needs root, and ext4 in the kernel: %v", err)
	}
	unmount := func() { unix.Unmount(dir, unix.MNT_DETACH) }
	t.Cleanup(unmount)
	for _, path := range []string{image, dev} {
		refused(t, path, true, dir)
		refused(t, path, false, dir)
	}
	other, detachOther := attach(t, image)
	refused(t, other, true, dir)
	detachOther()
	unmount()
	granted(t, dev, true)()

	// Read-only, on a read-only loop device: still no other may write.
	detach()
	dev, _ = attach(t, image, "-r")
	require.NoError(t, unix.Mount(dev, dir, "ext4", unix.MS_RDONLY, "noload"))
	refused(t, image, true, dir)
	granted(t, image, false)()
	unmount()
	granted(t, image, true)
}

// taker starts a process that claims path in a mount namespace of its own, in which directories are covered.
func taker(t *testing.T, path string, hide ...string) (says string, end func()) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	script := `self=$0; for d; do mount -t tmpfs none "$d" || exit; done; exec "$self"`
	c := exec.Command("unshare", append([]string{"--mount", "sh", "-c", script, self}, hide...)...)
	c.Env = append(os.Environ(), beTaker+"="+path)
	in, err := c.StdinPipe()
	require.NoError(t, err)
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	c.Stderr = os.Stderr
	require.NoError(t, c.Start())
	done := false
	end = func() {
		if !done {
			done = true
			in.Close()
			c.Wait()
		}
	}
	t.Cleanup(end)
	b := make([]byte, 4096)
	n, _ := out.Read(b)
	return strings.TrimSpace(string(b[:n])), end
}

// TestOtherMountNamespace: where the image has no name, it is known all the same. Nor need /dev have the loop device.
func TestOtherMountNamespace(t *testing.T) {
	image := newImage(t)
	dev, detach := attach(t, image)
	if err := exec.Command("unshare", "--mount", "true").Run(); err != nil {
		t.Skipf("needs mount namespaces: %v", err)
	}
	hide := filepath.Dir(image)
	release := granted(t, dev, true)
	again, detachAgain := attach(t, image)
	says, end := taker(t, again, hide)
	require.Contains(t, says, "in use", "a second loop device of an image that is served by the first")
	end()
	detachAgain()
	release()

	says, end = taker(t, dev, hide)
	require.Equal(t, "taken", says)
	refused(t, dev, true, "in use")
	refused(t, image, true, dev)
	refused(t, image, false, dev)
	end()
	detach()

	release = granted(t, image, true)
	dev, _ = attach(t, image)
	says, end = taker(t, dev, hide)
	require.Contains(t, says, "in use", "a loop device of an image that is served by its name")
	end()
	release()

	other := filepath.Join(t.TempDir(), "image") // another name, where there is neither the first nor /dev
	require.NoError(t, os.Link(image, other))
	says, end = taker(t, other, hide, "/dev")
	require.Contains(t, says, dev)
	end()
}

// TestLoopOnDisk: what a loop device stands on may be a disk. The kernel lets both be used.
func TestLoopOnDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: a disk in memory")
	}
	const control = "/sys/class/zram-control/"
	n := readLine(control + "hot_add")
	if n == "" {
		t.Skipf("needs zram, and %shot_add cannot be read", control)
	}
	disk := "/dev/zram" + n
	t.Cleanup(func() {
		require.NoError(t, os.WriteFile("/sys/block/zram"+n+"/reset", []byte("1"), 0))
		require.NoError(t, os.WriteFile(control+"hot_remove", []byte(n), 0))
	})
	require.NoError(t, os.WriteFile("/sys/block/zram"+n+"/disksize", []byte("8M"), 0))
	dev, detach := attach(t, disk)
	refused(t, disk, true, dev)
	release := granted(t, dev, true)
	refused(t, disk, true, "in use")
	refused(t, disk, false, "in use")
	release()
	out, err := exec.Command("mkfs.ext4", "-q", "-F", disk).CombinedOutput()
	require.NoError(t, err, "%s", out)
	dir := t.TempDir()
	require.NoError(t, unix.Mount(disk, dir, "ext4", 0, ""))
	defer unix.Unmount(dir, unix.MNT_DETACH)
	refused(t, dev, true, disk+", which is mounted at")
	refused(t, dev, false, dir)
	require.NoError(t, unix.Unmount(dir, 0))
	detach()
	granted(t, disk, true)()
}

// TestDeleted: an image that has no name any more is known by its number.
func TestDeleted(t *testing.T) {
	image := newImage(t)
	fd, err := unix.Open(image, unix.O_RDWR|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	c, err := Take(image, fd, true)
	require.NoError(t, err)
	defer c.Close()
	dev, _ := attach(t, image)
	require.NoError(t, os.Remove(image))
	refused(t, dev, true, "in use")
}
