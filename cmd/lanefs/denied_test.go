package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
	"github.com/lanefs/lanefs/fs/share/seccomp"
	lanefs "github.com/lanefs/lanefs/sdk/go"
)

// denied has the test binary, being lanefs, forbid itself system calls, as a container's filter does: an error's number and denials.
const denied = "LANEFS_TEST_DENIED"

// denial is a system call that is denied: always, or where no bit of clear is set in an argument.
type denial struct {
	call  uintptr
	arg   int
	clear uint32
	only  uint32 // the argument is this; 0: any
}

// noRings is what containers deny as a rule.
var noRings = denial{call: unix.SYS_IO_URING_SETUP}

// deny has all that p runs from now on get that error from those calls.
func (p *place) deny(errno unix.Errno, calls ...denial) {
	if len(calls) == 0 {
		return
	}
	text := fmt.Sprintf("%s=%d", denied, errno)
	for _, d := range calls {
		text += fmt.Sprintf(" %d %d %d %d", d.call, d.arg, d.clear, d.only)
	}
	p.env = append(p.env, text)
}

// denyCalls does that in lanefs.
func denyCalls() {
	text := os.Getenv(denied)
	if text == "" {
		return
	}
	in := strings.NewReader(text)
	var errno uint
	_, err := fmt.Fscan(in, &errno)
	filter := seccomp.Filter{}
	for err == nil && in.Len() > 0 {
		var d denial
		_, err = fmt.Fscan(in, &d.call, &d.arg, &d.clear, &d.only)
		rule := seccomp.Rule{Arg: d.arg, Clear: d.clear}
		if d.only != 0 {
			rule.Only = []uint32{d.only}
		}
		filter[d.call] = rule
	}
	if err == nil {
		_ = os.Unsetenv(denied) // its children have the filter
		err = seccomp.DenyWith(filter, unix.Errno(errno))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// TestDenied: whatever system call a container's filter denies, by either error, a mount serves programs and clients, is unmounted, and leaves a volume without
// errors; or the error of the mount names the call, and what to do. make test has one of the errors for half of the calls.
func TestDenied(t *testing.T) {
	const letIt = `a container's seccomp filter (or AppArmor profile )?forbids it, most likely: let the container use `
	type outcome struct {
		mount   string // the error of the mount; empty: it serves
		control string // the error of all that is asked of the daemon; empty: it answers
		share   string // what the log says why clients cannot map files; empty: they can
	}
	works := outcome{}
	calls := map[string]struct {
		denial
		outcome
	}{
		"io_uring_setup":     {noRings, works},
		"io_uring_enter":     {denial{call: unix.SYS_IO_URING_ENTER}, works},
		"io_uring_register":  {denial{call: unix.SYS_IO_URING_REGISTER}, works},
		"userfaultfd":        {denial{call: unix.SYS_USERFAULTFD}, works},
		"perf_event_open":    {denial{call: unix.SYS_PERF_EVENT_OPEN}, works},
		"memfd_create":       {denial{call: unix.SYS_MEMFD_CREATE}, outcome{mount: `host runtime: memfd_create: .* \(` + letIt + `memfd_create\)`}},
		"pidfd_open":         {denial{call: unix.SYS_PIDFD_OPEN}, works},
		"pidfd_getfd":        {denial{call: unix.SYS_PIDFD_GETFD}, works},
		"process_vm_readv":   {denial{call: unix.SYS_PROCESS_VM_READV}, works},
		"mlock":              {denial{call: unix.SYS_MLOCK}, works},
		"sched_setaffinity":  {denial{call: unix.SYS_SCHED_SETAFFINITY}, works},
		"sched_setscheduler": {denial{call: unix.SYS_SCHED_SETSCHEDULER}, works},
		"setpriority":        {denial{call: unix.SYS_SETPRIORITY}, works},
		"ioprio_set":         {denial{call: unix.SYS_IOPRIO_SET}, works},
		"prctl":              {denial{call: unix.SYS_PRCTL}, outcome{share: `prctl: .* \(` + letIt + `prctl\)`}},
		"no_new_privs":       {denial{call: unix.SYS_PRCTL, only: unix.PR_SET_NO_NEW_PRIVS}, works},
		"IO flusher":         {denial{call: unix.SYS_PRCTL, only: unix.PR_SET_IO_FLUSHER}, works},
		"parent death":       {denial{call: unix.SYS_PRCTL, only: unix.PR_SET_PDEATHSIG}, outcome{share: `prctl: .* \(` + letIt + `prctl\)`}},
		"capset":             {denial{call: unix.SYS_CAPSET}, works},
		"seccomp":            {denial{call: unix.SYS_SECCOMP}, works},
		"membarrier":         {denial{call: unix.SYS_MEMBARRIER}, works},
		"fallocate":          {denial{call: unix.SYS_FALLOCATE}, works},
		"copy_file_range":    {denial{call: unix.SYS_COPY_FILE_RANGE}, works},
		"statx":              {denial{call: unix.SYS_STATX}, outcome{share: `statx: .* \(` + letIt + `statx\)`}},
		"openat2":            {denial{call: unix.SYS_OPENAT2}, works},
		"timerfd_create":     {denial{call: unix.SYS_TIMERFD_CREATE}, works},
		"futex_waitv":        {denial{call: unix.SYS_FUTEX_WAITV}, works},
		"name_to_handle_at":  {denial{call: unix.SYS_NAME_TO_HANDLE_AT}, works},
		"setns":              {denial{call: unix.SYS_SETNS}, works},
		"fsopen":             {denial{call: unix.SYS_FSOPEN}, works},
		"kcmp":               {denial{call: unix.SYS_KCMP}, works},
		"close_range":        {denial{call: unix.SYS_CLOSE_RANGE}, outcome{share: `close_range: .* \(` + letIt + `close_range\)`}},
		"prlimit64":          {denial{call: unix.SYS_PRLIMIT64}, works},
		"flock":              {denial{call: unix.SYS_FLOCK}, outcome{mount: `flock .*lock: `}},
		"mount":              {denial{call: unix.SYS_MOUNT}, outcome{mount: `mount ".*": .* \(` + letIt + `mount\)`}},
		"getsockopt": {denial{call: unix.SYS_GETSOCKOPT},
			outcome{control: `who asks cannot be found out: getsockopt: .* \(` + letIt + `getsockopt\)`, share: `getsockopt: .* \(` + letIt + `getsockopt\)`}},
	}
	for k, name := range slices.Sorted(maps.Keys(calls)) {
		c, errnos := calls[name], []unix.Errno{unix.EPERM, unix.ENOSYS}
		if name == "mount" {
			errnos = append(errnos, unix.EACCES) // of AppArmor
		}
		for n, errno := range errnos {
			if !disktest.Turn(2*k+n, 2*len(errnos)) {
				continue
			}
			t.Run(fmt.Sprintf("%s/%v", name, errno), func(t *testing.T) {
				p := newPlace(t)
				if os.Geteuid() != 0 {
					t.Skip("SKIPPED: needs root")
				}
				image, dir, log := p.image("image", 64), p.mkdir("mnt"), p.path("log")
				free := p.env
				p.deny(errno, c.denial)
				mount := []string{"mount", "--gpu", "host", "-o", "log=" + log, image, dir}
				if c.mount != "" {
					require.Regexp(t, c.mount, p.fails(mount...))
					require.False(t, p.mounted(dir))
					fsck(t, image)
					return
				}
				p.ok(mount...)
				want := bytes.Repeat([]byte("lanefs"), 200_000)
				file := filepath.Join(dir, "file")
				require.NoError(t, os.WriteFile(file, want, 0o644))
				tool(t, "cp", file, file+"2")
				got, err := os.ReadFile(file + "2")
				require.NoError(t, err)
				require.True(t, bytes.Equal(want, got))
				f, err := os.Open(file)
				require.NoError(t, err)
				defer f.Close()
				text, err := os.ReadFile(log)
				require.NoError(t, err)
				if c.share != "" {
					require.Regexp(t, `no files as device memory.*`+c.share, string(text))
				} else {
					canMap(t, f, want, string(text))
				}
				f.Close()
				if c.control != "" {
					for _, ask := range []string{"stat", "umount"} {
						require.Regexp(t, c.control, p.fails(ask, dir))
					}
					p.env = free
					tool(t, "umount", dir)
					p.eventually("the daemon's end", func() bool { return len(p.leftovers(dir)) == 0 })
				} else {
					p.ok("stat", dir)
					p.ok("umount", dir)
				}
				fsck(t, image)
			})
		}
	}
}

// canMap has a client of the mount map a file, which has those bytes. log is what a failure shows.
func canMap(t *testing.T, f *os.File, want []byte, log string) {
	t.Helper()
	s, err := lanefs.Connect(f)
	require.NoError(t, err, "%s", log)
	b, err := s.Map(f, 0, 0)
	require.NoError(t, err, "%s", log)
	require.True(t, bytes.Equal(want, b.Bytes()))
	require.NoError(t, b.Close())
	require.NoError(t, s.Close())
}

// TestNoCapability: who may not mount in a container hears what it lacks.
func TestNoCapability(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root")
	}
	disktest.Tool(t, "setpriv")
	const unknown = 1234567
	user := func(uid int) []string {
		return []string{"--reuid", itoa(uid), "--regid", itoa(uid), "--clear-groups"}
	}
	for name, c := range map[string]struct {
		uid  int
		as   []string
		want string
	}{
		"root": {0, []string{"--bounding-set", "-sys_admin"},
			`operation not permitted \(root has no CAP_SYS_ADMIN here: give the container that capability, and /dev/fuse\)`},
		"user": {nobody, append(user(nobody), "--bounding-set", "-sys_admin"),
			`fusermount3: mount failed: Operation not permitted \(nobody gets CAP_SYS_ADMIN here: give the container that capability, and /dev/fuse\)`},
		"no_new_privs": {nobody, append(user(nobody), "--no-new-privs"),
			`fusermount3: mount failed: Operation not permitted \(no_new_privs, .* mount as root, or without\)`},
		"unknown user": {unknown, user(unknown),
			`fusermount3: could not determine username \(it looks users up: uid 1234567 needs a line in /etc/passwd\)`},
	} {
		t.Run(name, func(t *testing.T) {
			p := newUserPlace(t)
			p.cred = nil
			image, dir := p.image("image", 64), p.mkdir("mnt")
			for _, f := range []string{image, dir, p.path("run")} {
				require.NoError(t, os.Chown(f, c.uid, c.uid))
			}
			cmd := exec.Command("setpriv", append(c.as, "--", p.bin, "mount", "--gpu", "host", image, dir)...)
			cmd.Env, cmd.Dir = p.env, p.dir
			out, err := cmd.CombinedOutput()
			require.Error(t, err)
			require.Regexp(t, `^lanefs: mount ".*": `+c.want+`\n$`, string(out))
			fsck(t, image)
		})
	}
}

// TestNoMtab: a container's image may lack /etc/mtab, which fusermount3 complains of when it mounts, and without which it does not unmount.
func TestNoMtab(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root")
	}
	disktest.Tool(t, "setpriv")
	p := newUserPlace(t)
	image, dir, etc := p.image("image", 64), p.mkdir("mnt"), p.mkdir("etc")
	p.own(image, dir, p.path("run"))
	const script = `cp -a /etc/passwd /etc/group /etc/nsswitch.conf "$1"; mount --bind "$1" /etc
user() { setpriv --reuid "$uid" --regid "$uid" --clear-groups "$@"; }
bin=$2 image=$3 dir=$4 uid=$5
! user --no-new-privs -- "$bin" mount --gpu host "$image" "$dir"
user -- "$bin" mount --gpu host "$image" "$dir"
! user -- "$bin" umount "$dir"
umount /etc
user -- "$bin" umount "$dir"`
	cmd := exec.Command("unshare", "--mount", "sh", "-e", "-c", script, "sh", etc, p.bin, image, dir, itoa(nobody))
	cmd.Env, cmd.Dir = p.env, p.dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "fusermount3: mount failed: Operation not permitted (no_new_privs")
	require.Contains(t, string(out), "failed to open /etc/mtab: No such file or directory (some containers' images lack it; root can make it: ln -s /proc/self/mounts /etc/mtab)\n")
	fsck(t, image)
}

// TestContainer: with the capabilities of Docker's default and CAP_SYS_ADMIN, and without the system calls that its profile denies, a mount serves, by /dev/fuse.
func TestContainer(t *testing.T) {
	p := newPlace(t)
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root")
	}
	disktest.Tool(t, "setpriv")
	var calls []denial
	for _, nr := range []uintptr{unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER, unix.SYS_USERFAULTFD, unix.SYS_PROCESS_VM_READV,
		unix.SYS_PROCESS_VM_WRITEV, unix.SYS_KCMP, unix.SYS_PTRACE, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL, unix.SYS_MBIND, unix.SYS_SET_MEMPOLICY,
		unix.SYS_GET_MEMPOLICY, unix.SYS_MOVE_PAGES, unix.SYS_MIGRATE_PAGES, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD,
		unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_PIDFD_GETFD, unix.SYS_SYSLOG, unix.SYS_REBOOT, unix.SYS_SWAPON, unix.SYS_SETTIMEOFDAY, unix.SYS_ADJTIMEX} {
		calls = append(calls, denial{call: nr})
	}
	p.deny(unix.EPERM, calls...)
	caps := "-all"
	for _, c := range []string{"chown", "dac_override", "fsetid", "fowner", "mknod", "net_raw", "setgid", "setuid", "setfcap", "setpcap", "net_bind_service", "sys_chroot", "kill",
		"audit_write", "sys_admin"} {
		caps += ",+" + c
	}
	within := func(args ...string) string {
		cmd := exec.Command("setpriv", append([]string{"--bounding-set", caps, "--inh-caps", "-all", "--", p.bin}, args...)...)
		cmd.Env, cmd.Dir = p.env, p.dir
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	image, dir, log := p.image("image", 64), p.mkdir("mnt"), p.path("log")
	require.Empty(t, within("mount", "--gpu", "host", "-o", "vram=8M,log="+log, image, dir))
	want := bytes.Repeat([]byte("lanefs"), 200_000)
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, want, 0o644))
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	canMap(t, f, want, "")
	f.Close()
	way := "requests    by /dev/fuse"
	if fs.IOUringAuto.Wanted() { // the tests run with the one and with the other
		way += ", not io_uring: "
	}
	require.Contains(t, within("stat", dir), way)
	said, err := os.ReadFile(log)
	require.NoError(t, err)
	require.NotContains(t, string(said), "level=WARN")
	within("umount", dir)
	fsck(t, image)
}
