package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/privilege"
)

// TestPrivileges looks at every thread of a daemon, at rest and after work: root's keeps what it needs and no more. What
// it keeps is enough for all that comes: other people's files, a busy detach, the end of the connection, the unmount.
func TestPrivileges(t *testing.T) {
	p := newPlace(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root: the daemon of another user has no capabilities")
	}
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	require.NoError(t, os.Chown(img, 12345, 12345)) // opened before anything is dropped
	check := func(pid int) {
		t.Helper()
		threads, err := privilege.Threads(pid)
		require.NoError(t, err)
		require.Greater(t, len(threads), 2)
		for tid, s := range threads {
			require.Zero(t, (s.Permitted|s.Effective|s.Inheritable|s.Ambient)&^privilege.Of(unix.CAP_SYS_ADMIN, unix.CAP_IPC_LOCK, unix.CAP_SYS_NICE), "thread %d: %+v", tid, s)
			require.True(t, s.NoNewPrivs, "thread %d: %+v", tid, s)
			status, err := os.ReadFile(filepath.Join("/proc", itoa(pid), "task", itoa(tid), "status"))
			if err == nil { // else the thread has ended
				require.Regexp(t, `(?m)^Seccomp:\s*2$`, string(status), "thread %d", tid)
			}
		}
	}
	start := func() int {
		p.ok("mount", img, mnt)
		r, err := p.stat(mnt)
		require.NoError(t, err)
		return r.PID
	}
	pid := start()
	check(pid)
	for i := range 20 {
		f := filepath.Join(mnt, itoa(i))
		require.NoError(t, os.WriteFile(f, make([]byte, 1<<20), 0o600))
		require.NoError(t, os.Chown(f, 1000+i, 2000+i))
		require.NoError(t, unix.Mknod(f+"dev", unix.S_IFBLK|0o600, int(unix.Mkdev(7, uint32(i)))))
	}
	check(pid)
	p.ok("umount", mnt)
	fsck(t, img)

	pid = start()
	f, err := os.Create(filepath.Join(mnt, "open"))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, unix.SIGTERM))
	p.eventually("the mount to be detached", func() bool { return !p.mounted(mnt) })
	require.NoError(t, syscall.Kill(pid, unix.SIGTERM))
	p.eventually("the daemon's end", func() bool { return gone(pid) })
	f.Close()
	fsck(t, img)
}
