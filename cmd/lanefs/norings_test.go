package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/uring/uringtest"
)

// TestNoExecMemFD: a hardened system (vm.memfd_noexec=2) gives out no memfds that could be executed. A mount needs none, not for its kernels either.
func TestNoExecMemFD(t *testing.T) {
	if unix.Access("/proc/sys/vm/memfd_noexec", unix.F_OK) != nil {
		t.Skip("SKIPPED: the kernel has no memfds that cannot be executed")
	}
	p := newPlace(t)
	image, mnt := p.image("image", 64), p.mkdir("mnt")
	p.deny(unix.EPERM, denial{call: unix.SYS_MEMFD_CREATE, arg: 1, clear: unix.MFD_NOEXEC_SEAL})
	p.ok("mount", "--gpu", "host", image, mnt)
	require.NoError(t, os.WriteFile(filepath.Join(mnt, "file"), make([]byte, 1<<20), 0o600))
	p.ok("vram", "ls", mnt)
	p.ok("umount", mnt)
	fsck(t, image)
}

// TestNoMemFD: without memfds there is no runtime for the lanes, which is an error like others. Before, the daemon crashed.
func TestNoMemFD(t *testing.T) {
	p := newPlace(t)
	image, mnt := p.image("image", 64), p.mkdir("mnt")
	p.deny(unix.EPERM, denial{call: unix.SYS_MEMFD_CREATE})
	for _, gpu := range []string{"auto", "host"} {
		require.Contains(t, p.fails("mount", "--gpu", gpu, image, mnt), "host runtime: memfd_create: operation not permitted")
	}
}

// setting changes a file of the machine's for the time of a test.
func setting(t *testing.T, path, value string) {
	t.Helper()
	before, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, []byte(value), 0)
	}
	if err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, os.WriteFile(path, before, 0)) })
}

// fewThreads is a command in a control group that may have so many threads.
func fewThreads(t *testing.T, most int) []string {
	for _, top := range []string{"/sys/fs/cgroup/pids", "/sys/fs/cgroup"} {
		dir, err := os.MkdirTemp(top, "lanefs-test-")
		if err != nil {
			continue
		}
		t.Cleanup(func() { _ = os.Remove(dir) })
		if err := os.WriteFile(filepath.Join(dir, "pids.max"), []byte(itoa(most)), 0o644); err != nil {
			_ = os.Remove(dir)
			continue
		}
		return []string{"sh", "-c", `echo $$ >"$0"/cgroup.procs; exec "$@"`, dir}
	}
	t.Skip("SKIPPED: no control group can be made here")
	return nil
}

// TestNoRings: where rings are asked for and cannot be had, a mount goes on by /dev/fuse, and stat and doctor say why, with the remedy.
func TestNoRings(t *testing.T) {
	for name, c := range map[string]struct {
		prepare     func(t *testing.T, p *place) (before []string) // of the commands
		why, remedy string
	}{
		"filter": {func(_ *testing.T, p *place) []string { p.deny(unix.EPERM, noRings); return nil },
			"refused here, by a container's seccomp filter", "let the container use io_uring_setup"},
		"sysctl": {func(t *testing.T, _ *place) []string {
			setting(t, "/proc/sys/kernel/io_uring_disabled", "2")
			return nil
		},
			"kernel.io_uring_disabled forbids", "sysctl kernel.io_uring_disabled=0"},
		"threads": {func(t *testing.T, _ *place) []string { return fewThreads(t, 40) }, "may have 40", "raise pids.max"},
	} {
		t.Run(name, func(t *testing.T) {
			uringtest.Enable(t)
			if os.Geteuid() != 0 {
				t.Skip("SKIPPED: needs root")
			}
			p := newPlace(t)
			image, mnt := p.image("image", 64), p.mkdir("mnt")
			before := c.prepare(t, p)
			within := func(args ...string) string {
				cmd := p.command(args...)
				if len(before) > 0 {
					inner := exec.Command(before[0], append(append(before[1:len(before):len(before)], p.bin), args...)...)
					inner.Env, inner.Dir = cmd.Env, cmd.Dir
					cmd = inner
				}
				out, err := cmd.CombinedOutput()
				require.NoError(t, err, "%s", out)
				return string(out)
			}
			within("mount", "--gpu", "host", "-o", "io_uring=on,lanes=2", image, mnt)
			out := p.ok("stat", mnt)
			require.Contains(t, out, "requests    by /dev/fuse, not io_uring: ")
			require.Contains(t, out, c.why)
			require.Contains(t, out, c.remedy)
			out = within("doctor")
			require.Regexp(t, "no    FUSE over io_uring .*"+c.why+".*: requests come by /dev/fuse", out)
			require.Contains(t, out, c.remedy)
			require.NoError(t, os.WriteFile(filepath.Join(mnt, "file"), []byte("x"), 0o644))
			p.ok("umount", mnt)
			fsck(t, image)
		})
	}
}

// TestFewDescriptorsBesideRings: where the rings take nearly all descriptors a mount goes on by /dev/fuse, says why, as doctor does, and can be unmounted.
func TestFewDescriptorsBesideRings(t *testing.T) {
	uringtest.Enable(t)
	p := newPlace(t)
	image, mnt := p.image("image", 64), p.mkdir("mnt")
	options := []string{"mount", "--gpu", "host", "-o", "io_uring=on", image, mnt}
	p.ok(options...)
	r, err := p.stat(mnt)
	require.NoError(t, err)
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", r.PID))
	require.NoError(t, err)
	p.ok("umount", mnt)
	for _, more := range []int{-3, 0, 8} {
		few := fmt.Sprintf("ulimit -n %d", len(open)+more)
		said, err := p.after(few, options...)
		require.NoError(t, err, said)
		said, _ = p.after(few, "doctor")
		require.Regexp(t, "no    FUSE over io_uring .*too few descriptors", said)
		out := p.ok("stat", mnt)
		require.Contains(t, out, "requests    by /dev/fuse, not io_uring: ")
		require.Contains(t, out, "(raise ulimit -n)")
		require.NoError(t, os.WriteFile(filepath.Join(mnt, "file"), []byte("x"), 0o644))
		p.ok("umount", mnt)
	}
	fsck(t, image)
}

// TestRingsInUserNamespace: a user who is root in a namespace of its own mounts over rings. One who may lock no memory, as which the kernel counts
// rings, mounts over /dev/fuse; an image's pool needs none.
func TestRingsInUserNamespace(t *testing.T) {
	if out, err := exec.Command("unshare", "--user", "--map-root-user", "--mount", "true").CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: no user namespace can be made here: %s", out)
	}
	for limit, want := range map[string][]string{
		"ulimit -l 65536": {"requests    by io_uring"},
		"ulimit -l 0":     {"requests    by /dev/fuse", "there is no memory for the rings", "the limit of locked memory is 0 KiB: raise it"},
	} {
		t.Run(limit, func(t *testing.T) {
			uringtest.Enable(t)
			p := newPlace(t)
			image, mnt := p.image("image", 64), p.mkdir("mnt")
			const script = `set -e
"$0" mount --gpu host -o io_uring=on "$1" "$2"
echo text >"$2/file"
"$0" stat "$2"
"$0" doctor
"$0" umount "$2"`
			cmd := exec.Command("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", limit+"\n"+script, p.bin, image, mnt)
			cmd.Env, cmd.Dir = p.env, p.dir
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			for _, text := range want {
				require.Contains(t, string(out), text)
			}
			require.Equal(t, limit == "ulimit -l 0", strings.Contains(string(out), "no    FUSE over io_uring"), "the doctor: %s", out)
			fsck(t, image)
		})
	}
}

// TestNestedRings: an image that is a file of one mount is mounted by another, both on rings.
func TestNestedRings(t *testing.T) {
	uringtest.Enable(t)
	p := newPlace(t)
	outer, mnt, inner := p.image("image", 256), p.mkdir("outer"), p.mkdir("inner")
	p.ok("mount", "--gpu", "host", "-o", "io_uring=on", outer, mnt)
	image := filepath.Join("outer", "image")
	p.image(image, 64)
	p.ok("mount", "--gpu", "host", "-o", "io_uring=on", p.path(image), inner)
	data := make([]byte, 8<<20)
	for i := range data {
		data[i] = byte(i >> 12)
	}
	require.NoError(t, os.WriteFile(filepath.Join(inner, "file"), data, 0o644))
	want := sum(t, filepath.Join(inner, "file"))
	p.ok("umount", inner)
	p.ok("mount", "--gpu", "host", "-o", "io_uring=on", p.path(image), inner)
	require.Equal(t, want, sum(t, filepath.Join(inner, "file")))
	p.ok("umount", inner)
	fsck(t, p.path(image))
	p.ok("umount", mnt)
	fsck(t, outer)
}
