package vm

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// An ordinary user, in the group that docs/70-lanefs.rules gives access to.
const (
	user  = 1000
	group = 4242
)

// as runs a command as that user.
func as(t testing.TB, name string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: group}}
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	require.False(t, err != nil && cmd.Process == nil, "%s does not start: %v", name, err)
	return string(out), err
}

// letIn changes the nodes' groups and modes as the rules do.
func letIn(t testing.TB) {
	t.Helper()
	var nodes []string
	for _, pattern := range []string{"/dev/iommu", "/dev/vfio/devices/*", "/dev/vfio/[0-9]*"} {
		found, _ := filepath.Glob(pattern)
		nodes = append(nodes, found...)
	}
	require.NotEmpty(t, nodes)
	for _, n := range nodes {
		require.NoError(t, os.Chown(n, 0, group))
		require.NoError(t, os.Chmod(n, 0o660))
		t.Cleanup(func() { os.Chown(n, 0, 0) })
	}
}

// TestOrdinaryUser mounts a drive without root: the user's group may open the nodes.
func TestOrdinaryUser(t *testing.T) {
	if _, err := exec.LookPath("fusermount3"); err != nil {
		t.Skip("SKIP: no fusermount3 in the guest")
	}
	dev := disk(t, nvme0)
	mkfs(t, dev, "-E", "root_owner=1000:4242")
	helper, err := exec.LookPath("fusermount3")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(helper, os.ModeSetuid|0o755))
	require.NoError(t, os.Chmod("/dev/fuse", 0o666))
	os.Symlink("/proc/self/mounts", "/etc/mtab") // fusermount3 looks up mounts there
	passwd, err := os.ReadFile("/etc/passwd")
	require.NoError(t, err)
	if !strings.Contains(string(passwd), "\nuser:") {
		require.NoError(t, os.WriteFile("/etc/passwd", append(passwd, "user:x:1000:4242:user:/:/bin/sh\n"...), 0o644))
	}
	dir, err := os.MkdirTemp("/tmp", "user") // a tmpfs: fusermount3 does not mount over the initramfs's ramfs
	require.NoError(t, err)
	require.NoError(t, os.Chown(dir, user, group))
	t.Run("lanefs", func(t *testing.T) {
		bound(t, nvme0)
		out, err := as(t, "lanefs", "mount", nvme0, dir)
		require.Error(t, err, out)
		require.Contains(t, out, "permission denied")
		letIn(t)

		// A small limit of locked memory gives an error that names it; 70-lanefs.rules cannot raise it, the administrator can.
		var was unix.Rlimit
		require.NoError(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &was))
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 64 << 10, Max: was.Max}))
		out, err = as(t, "lanefs", "mount", nvme0, dir)
		require.Error(t, err, out)
		require.Contains(t, out, "locked memory")
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}))
		t.Cleanup(func() { unix.Setrlimit(unix.RLIMIT_MEMLOCK, &was) })

		out, err = as(t, "lanefs", "doctor")
		require.NoError(t, err, out)
		require.Regexp(t, "ok    "+nvme0+" .*ready: /dev/vfio/", out)
		out, err = as(t, "lanefs", "mount", "-o", "log="+dir+".log", nvme0, dir)
		if err != nil {
			log, _ := os.ReadFile(dir + ".log")
			t.Logf("the daemon's log:\n%s", log)
		}
		require.NoError(t, err, out)
		out, err = as(t, "sh", "-c", "dd if=/dev/urandom of="+dir+"/file bs=64k count=16 && sha256sum <"+dir+"/file >"+dir+"/sum && sha256sum <"+dir+"/file | cmp - "+dir+"/sum")
		if err != nil {
			as(t, "lanefs", "umount", dir)
		}
		require.NoError(t, err, out)
		_, err = os.ReadDir(dir)
		require.ErrorIs(t, err, unix.EACCES, "root does not see into it either")
		out, err = as(t, "lanefs", "umount", dir)
		require.NoError(t, err, out)
	})
	if t.Failed() {
		return
	}
	dev = disk(t, nvme0)
	fsck(t, dev)
	kernelMount(t, dev, func(dir string) {
		must(t, "sh", "-c", "sha256sum <"+dir+"/file | cmp - "+dir+"/sum")
		var st unix.Stat_t
		require.NoError(t, unix.Stat(dir+"/file", &st))
		require.EqualValues(t, user, st.Uid)
	})
}

// TestPrivilegesOnADrive: root's daemon works with the privileges that it keeps, while it pins memory for the drive.
func TestPrivilegesOnADrive(t *testing.T) {
	mkfs(t, disk(t, nvme0))
	bound(t, nvme0)
	dir := mount(t, nvme0)
	pids := daemons()
	require.Len(t, pids, 1)
	check := func() {
		t.Helper()
		threads, err := filepath.Glob("/proc/" + pids[0] + "/task/*/status")
		require.NoError(t, err)
		require.Greater(t, len(threads), 2)
		for _, status := range threads {
			b, err := os.ReadFile(status)
			if err != nil {
				continue // it has ended
			}
			// CAP_SYS_ADMIN, CAP_SYS_NICE and CAP_IPC_LOCK (capabilities(7)).
			for _, want := range []string{"CapPrm:\t0000000000a04000\n", "CapEff:\t0000000000a04000\n", "CapInh:\t0000000000000000\n", "NoNewPrivs:\t1\n"} {
				require.Contains(t, string(b), want, status)
			}
			// PF_MEMALLOC_NOIO and PF_LOCAL_THROTTLE (include/linux/sched.h), of PR_SET_IO_FLUSHER (prctl(2)); the name before may contain anything.
			if b, err = os.ReadFile(filepath.Dir(status) + "/stat"); err == nil {
				after := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
				flags, err := strconv.ParseUint(after[6], 10, 64)
				require.NoError(t, err)
				require.EqualValues(t, 0x180000, flags&0x180000, "%s: flags %#x", status, flags)
			}
		}
	}
	check()
	require.Equal(t, "-500\n", must(t, "cat", "/proc/"+pids[0]+"/oom_score_adj"))
	require.NoError(t, dd("/dev/zero", dir+"/large", "bs=1M", "count=64"))
	check()
	lanefs(t, "umount", dir)
}
