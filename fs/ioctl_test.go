package fs

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
)

// doIoctl opens path for reading and does one ioctl with the bytes of arg.
func doIoctl(path string, cmd uint, arg []byte) error {
	fd, err := unix.Open(path, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(cmd), uintptr(unsafe.Pointer(&arg[0]))); errno != 0 {
		return errno
	}
	return nil
}

// setFlags is chattr(1): flags come, with the same value in the upper half of a long unused.
func setFlags(path string, flags uint32) error {
	arg := make([]byte, 8)
	if err := doIoctl(path, unix.FS_IOC_GETFLAGS, arg); err != nil {
		return err
	}
	const changes = ext4.FlagImmutable | ext4.FlagAppend | ext4.FlagNoDump | ext4.FlagNoAtime | ext4.FlagSync | ext4.FlagProjInherit | ext4.FlagTopDir
	*(*uint32)(unsafe.Pointer(&arg[0])) = *(*uint32)(unsafe.Pointer(&arg[0]))&^changes | flags
	return doIoctl(path, unix.FS_IOC_SETFLAGS, arg)
}

func TestIoctl(t *testing.T) {
	m := newMount(t, Options{})
	write(t, m.path("file"), "x")
	for _, path := range []string{m.path("file"), m.dir} {
		f, err := os.Open(path)
		require.NoError(t, err)
		defer f.Close()
		flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
		require.NoError(t, err)
		const extents = 0x80000
		require.NotZero(t, flags&extents, "%#x", flags)
		var in ext4.Attr
		if path == m.dir {
			in = m.srv.root.in.Attr()
		} else {
			in = m.srv.nodes.get(stat(t, path).Ino).in.Attr()
		}
		gen, err := unix.IoctlGetInt(int(f.Fd()), iocGetVersion)
		require.NoError(t, err)
		require.EqualValues(t, in.Generation, gen)
		_, err = unix.IoctlGetInt(int(f.Fd()), unix.BLKGETSIZE64)
		require.ErrorIs(t, err, unix.ENOTTY)
	}
}

// TestFstrim: the blocks of a deleted file are not in the image any more.
func TestFstrim(t *testing.T) {
	needTool(t, "fstrim")
	m := newMount(t, Options{})
	data := bytes.Repeat([]byte("trim me "), 4<<20)
	require.NoError(t, os.WriteFile(m.path("big"), data, 0o644))
	fd, err := os.Open(m.dir)
	require.NoError(t, err)
	defer fd.Close()
	require.NoError(t, fd.Sync())
	used := func() int64 {
		var st unix.Stat_t
		require.NoError(t, unix.Stat(m.volume.path, &st))
		return st.Blocks * 512
	}
	full := used()
	require.NoError(t, os.Remove(m.path("big")))
	// The file's blocks are free when the kernel has forgotten its inode, which it does in its own time.
	require.Eventually(t, func() bool {
		out, err := exec.Command("fstrim", "-v", m.dir).CombinedOutput()
		return err == nil && strings.Contains(string(out), "trimmed") && used() < full-int64(len(data))*9/10
	}, 2*time.Minute, 100*time.Millisecond)
	cmd := exec.Command("fstrim", m.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "Operation not permitted")
}

// TestLabel: e2label on a mounted volume.
func TestLabel(t *testing.T) {
	m := newMount(t, Options{}, "-L", "before")
	get := func() string {
		arg := make([]byte, 256)
		require.NoError(t, doIoctl(m.dir, iocGetLabel, arg))
		label, _, _ := bytes.Cut(arg, []byte{0})
		return string(label)
	}
	set := func(label string) error {
		return doIoctl(m.dir, iocSetLabel, append([]byte(label), make([]byte, 256-len(label))...))
	}
	require.Equal(t, "before", get())
	require.NoError(t, set("sixteen bytes ok"))
	require.Equal(t, "sixteen bytes ok", get())
	require.ErrorIs(t, set("seventeen bytes !"), unix.EINVAL)
	cmd := helper(t, "label", m.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	said, err := cmd.Output()
	require.NoError(t, err)
	require.Equal(t, unix.EPERM.Error(), string(said))
	m.unmount()
	out, err := exec.Command("e2label", m.volume.path).Output()
	require.NoError(t, err)
	require.Equal(t, "sixteen bytes ok\n", string(out))
}

func labelHelper(args []string) { fmt.Print(doIoctl(args[0], iocSetLabel, make([]byte, 256))) }
