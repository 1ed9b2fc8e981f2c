package gate

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const childEnv = "LANEFS_GATE_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		if err := try(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// TestCalls: system calls that are not allowed fail with EPERM. It runs in a child, because a filter cannot be removed.
func TestCalls(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childEnv+"=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func try() error {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	if err := restrict(); err != nil {
		return err
	}
	page := uintptr(os.Getpagesize())
	refused := map[string]func() error{
		"open":      func() error { _, err := unix.Open("/", unix.O_RDONLY, 0); return err },
		"openat":    func() error { _, err := unix.Openat(unix.AT_FDCWD, "/", unix.O_RDONLY, 0); return err },
		"execve":    func() error { return unix.Exec("/bin/true", []string{"true"}, nil) },
		"fork":      func() error { _, err := syscall.ForkExec("/bin/true", nil, nil); return err },
		"socket":    func() error { _, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0); return err },
		"inet pair": func() error { _, err := unix.Socketpair(unix.AF_INET, unix.SOCK_STREAM, 0); return err },
		"connect":   func() error { return unix.Connect(fds[0], &unix.SockaddrUnix{Name: "/x"}) },
		"kill":      func() error { return unix.Kill(os.Getppid(), 0) },
		"tgkill":    func() error { return unix.Tgkill(1, 1, 0) },
		"ptrace":    func() error { return unix.PtraceAttach(os.Getppid()) },
		"ioctl":     func() error { _, err := unix.IoctlGetInt(fds[0], unix.TIOCINQ); return err },
		"memfd":     func() error { _, err := unix.MemfdCreate("x", 0); return err },
		"mount":     func() error { return unix.Mount("x", "/", "tmpfs", 0, "") },
		"unlink":    func() error { return unix.Unlink("/nothing") },
		"truncate":  func() error { return unix.Ftruncate(fds[0], 0) },
		"F_SETOWN":  func() error { _, err := unix.FcntlInt(uintptr(fds[0]), unix.F_SETOWN, 1); return err },
		"executable memory": func() error {
			_, _, errno := unix.RawSyscall6(unix.SYS_MMAP, 0, page, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, ^uintptr(0), 0)
			return errno
		},
		"seccomp": func() error {
			_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, 0, 0, 0)
			return errno
		},
	}
	for what, f := range refused {
		if err := f(); err != unix.EPERM {
			return fmt.Errorf("%s: %v", what, err)
		}
	}
	if _, err := unix.FcntlInt(uintptr(fds[0]), unix.F_GETFL, 0); err != nil {
		return fmt.Errorf("what it needs: %w", err)
	}
	return nil
}
