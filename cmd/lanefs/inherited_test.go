package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// after is lanefs with arguments, started by a shell that has run a command before.
func (p *place) after(command string, args ...string) (said string, err error) {
	c := exec.Command("bash", append([]string{"-c", command + ` && exec "$0" "$@"`, p.bin}, args...)...)
	c.Env, c.Dir = p.env, p.dir
	out, err := c.CombinedOutput()
	return string(out), err
}

// TestFileSizeLimit: a soft limit of a file's size does not concern the image; a hard one is refused by name where the image is larger. Before, a
// write beyond it made the volume read-only.
func TestFileSizeLimit(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.image("image", 64), p.mkdir("mnt")
	said, err := p.after("ulimit -S -f 20480", "mount", img, mnt) // KiB
	require.NoError(t, err, said)
	require.Empty(t, said)
	f, err := os.Create(filepath.Join(mnt, "file"))
	require.NoError(t, err)
	for range 30 {
		_, err = f.Write(bytes.Repeat([]byte("x"), 1<<20))
		require.NoError(t, err)
	}
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
	p.ok("umount", mnt)
	fsck(t, img)
	said, err = p.after("ulimit -f 20480", "mount", img, mnt)
	require.Error(t, err)
	require.Contains(t, said, "has 67108864 bytes, and this process may write to the first 20971520 of a file: raise that limit (ulimit -f")
	require.False(t, p.mounted(mnt))
	require.Empty(t, p.leftovers(mnt))
	said, err = p.after("ulimit -f 20480", "mount", "-o", "ro", img, mnt) // which writes nothing
	require.NoError(t, err, said)
	p.ok("umount", mnt)
	fsck(t, img)
}

// TestFileSizeLimitInUse: a limit that comes while a daemon runs, and that no program and no log may outgrow, is no room for the image: SIGXFSZ does not end the daemon, writers hear
// ENOSPC, the log says which limit, and when it has gone the mount goes on.
func TestFileSizeLimitInUse(t *testing.T) {
	p := newPlace(t)
	img, mnt, log := p.image("image", 64), p.mkdir("mnt"), p.path("log")
	p.ok("mount", "-o", "log="+log, img, mnt)
	r, err := p.stat(mnt)
	require.NoError(t, err)
	limit := func(n uint64) {
		require.NoError(t, unix.Prlimit(r.PID, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: n, Max: unix.RLIM_INFINITY}, nil))
	}
	limit(1 << 20)
	f, err := os.Create(filepath.Join(mnt, "file"))
	require.NoError(t, err)
	_, err = f.Write(bytes.Repeat([]byte("x"), 8<<20))
	if err == nil {
		err = f.Sync()
	}
	require.ErrorIs(t, err, unix.ENOSPC)
	require.False(t, gone(r.PID))
	said, err := os.ReadFile(log)
	require.NoError(t, err)
	require.Contains(t, string(said), "the process may not write to so large a file: raise that limit (ulimit -f")
	limit(unix.RLIM_INFINITY)
	_, err = f.WriteAt(bytes.Repeat([]byte("y"), 8<<20), 0)
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
	p.ok("umount", mnt)
	fsck(t, img)
}

// TestTimeLimit: a daemon outlives a soft limit of its time on the CPU, and tells of a hard one.
func TestTimeLimit(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	said, err := p.after("ulimit -S -t 1000", "mount", img, mnt)
	require.NoError(t, err, said)
	r, err := p.stat(mnt)
	require.NoError(t, err)
	var limit, had unix.Rlimit
	require.NoError(t, unix.Prlimit(r.PID, unix.RLIMIT_CPU, nil, &limit))
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_CPU, &had))
	require.Equal(t, had.Max, limit.Cur)
	p.ok("umount", mnt)
	said, err = p.after("ulimit -t 1000", "mount", img, mnt)
	require.NoError(t, err, said)
	require.Contains(t, said, "after 1000 s on the CPU: mount it without that limit")
	p.ok("umount", mnt)
}

// TestMemoryLimit: a daemon sheds soft limits of its memory, and tells of hard ones, also where they are why a thread or memory cannot be had. No
// limit here is one that is reached.
func TestMemoryLimit(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	const much = 1 << 57
	for flag, what := range map[string]int{"-v": unix.RLIMIT_AS, "-d": unix.RLIMIT_DATA} {
		said, err := p.after("ulimit -S "+flag+" "+itoa(much>>10), "mount", img, mnt)
		require.NoError(t, err, said)
		require.Empty(t, said)
		r, err := p.stat(mnt)
		require.NoError(t, err)
		var limit, had unix.Rlimit
		require.NoError(t, unix.Prlimit(r.PID, what, nil, &limit))
		require.NoError(t, unix.Getrlimit(what, &had))
		require.Equal(t, had.Max, limit.Cur)
		p.ok("umount", mnt)
		said, err = p.after("ulimit "+flag+" "+itoa(much>>10), "mount", img, mnt)
		require.NoError(t, err, said)
		require.Contains(t, said, "may have 137438953472 MiB of memory: raise that limit (ulimit -v and -d")
		p.ok("umount", mnt)

		if had.Cur == unix.RLIM_INFINITY {
			require.Equal(t, noMoreThreads, moreThreads())
			require.Empty(t, limitWords(unix.ENOMEM))
			require.NoError(t, unix.Setrlimit(what, &unix.Rlimit{Cur: much, Max: had.Max}))
			words := lastWords("fakecgo: pthread_create failed: 11", p.path("none"), 0, nil)
			noRoom := limitWords(fmt.Errorf("map: %w", unix.ENOMEM))
			require.NoError(t, unix.Setrlimit(what, &had))
			require.Contains(t, words, ": a process may have 137438953472 MiB of memory")
			require.Contains(t, noRoom, ": this process may have 137438953472 MiB of memory")
		}
	}
	fsck(t, img)
}

// TestUmask: what a daemon makes is reached by those whom it is for, whatever the umask.
func TestUmask(t *testing.T) {
	p := newPlace(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root: a /run of its own")
	}
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	c := exec.Command("unshare", "--mount", "sh", "-c", disktest.LetGo+`set -e
mount -t tmpfs -o mode=755 tmpfs /run
(umask 0777; "$0" mount "$1" "$2")
stat -c '%a %n' /run/lanefs /run/lanefs-share
"$0" umount "$2"
ls /run/lanefs`, p.bin, img, mnt)
	c.Env, c.Dir = p.env, p.dir
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "700 /run/lanefs\n755 /run/lanefs-share\n", string(out))
	fsck(t, img)
}

// TestWithoutProc: a command that cannot look into /proc says so. A mount that is there goes on without it, and
// a signal unmounts it; where it is busy, it is detached, and ends with the last open file. What is mounted over it stays.
func TestWithoutProc(t *testing.T) {
	p := newPlace(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root: a /proc of its own")
	}
	const cannot = "cannot be detached"
	for name, c := range map[string]struct{ before, after, log string }{
		"covered": {`mount -t tmpfs tmpfs "$2"; touch "$2/other"`, `until grep -qs "` + cannot + `" "$2.log"; do sleep 0.05; done
test -e "$2/other" || exit 1
mount -t proc proc /proc
umount -i "$2"
kill $!`, cannot},
		"idle": {"", "", "unmounted"},
		"busy": {`exec 5>"$2/open"`, `until grep -qs "detaching the mount" "$2.log"; do sleep 0.05; done
echo more >&5
until ! mountpoint -q "$2"; do sleep 0.05; done
exec 5>&-`, "mount is busy"},
	} {
		t.Run(name, func(t *testing.T) {
			img, mnt := p.image("image-"+name, 32), p.mkdir("mnt-"+name)
			sh := exec.Command("unshare", "--mount", "sh", "-c", disktest.LetGo+`"$0" mount --foreground "$1" "$2" 2> "$2.log" &
until grep -qs msg=mounted "$2.log"; do sleep 0.05; done
mount -t tmpfs tmpfs /proc
"$0" umount "$2" && exit 1
echo written > "$2/file"
`+c.before+`
kill $!
`+c.after+`
wait $!`, p.bin, img, mnt)
			sh.Env, sh.Dir = p.env, p.dir
			out, err := sh.CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Equal(t, "lanefs: open /proc/self/mountinfo: no such file or directory: is /proc there? mount -t proc proc /proc\n", string(out))
			fsck(t, img)
			require.Contains(t, tool(t, "debugfs", "-R", "cat /file", img), "written")
			log, err := os.ReadFile(mnt + ".log")
			require.NoError(t, err)
			require.Contains(t, string(log), c.log)
			require.Equal(t, name == "covered", strings.Contains(string(log), cannot))
			if name == "busy" {
				require.Contains(t, tool(t, "debugfs", "-R", "cat /open", img), "more")
			}
		})
	}
}

// TestOtherRuntimeDirectory: a user's command finds a daemon that was started with another XDG_RUNTIME_DIR or TMPDIR, as by a session that su, ssh or cron
// know nothing of, in the usual places, and names the variables where it does not.
func TestOtherRuntimeDirectory(t *testing.T) {
	p := newUserPlace(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root: a /run and a /tmp of its own")
	}
	img, mnt, odd := p.image("image", 32), p.mkdir("mnt"), p.mkdir("odd")
	p.own(img, mnt, odd)
	c := exec.Command("unshare", "--mount", "bash", "-c", disktest.LetGo+`set -e
bin=$0 user=$4
mount -t tmpfs tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /tmp
run=/run/user/$4
mkdir -p -m 755 /run/user
mkdir -m 700 $run
chown $4 $run
as() { local set=$1; shift; setpriv --reuid $user --regid $user --clear-groups env -u XDG_RUNTIME_DIR -u TMPDIR $set "$bin" "$@"; }
as XDG_RUNTIME_DIR=$run mount "$1" "$2"
as A=B umount "$2"
as A=B mount "$1" "$2"
as TMPDIR="$3" umount "$2"
as TMPDIR="$3" mount "$1" "$2"
as A=B umount "$2" && exit 1
as TMPDIR="$3" umount "$2"`, p.bin, img, mnt, odd, itoa(p.uid()))
	c.Env, c.Dir = p.env, p.dir
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	require.Contains(t, lines[len(lines)-1], `its daemon does not answer: there is no socket of it in ["/tmp/lanefs-`+itoa(p.uid())+
		`" "/run/user/`+itoa(p.uid())+`/lanefs"], and XDG_RUNTIME_DIR or TMPDIR may have been others when it was mounted: unmount it with fusermount3 -u`)
	for _, l := range lines[:len(lines)-1] {
		require.Contains(t, l, "belongs to uid 0, so you cannot write")
	}
	fsck(t, img)
}

// TestFewDescriptors: the error says which limit it is.
func TestFewDescriptors(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	said, err := p.after("ulimit -n 12", "mount", img, mnt)
	require.Error(t, err)
	require.Contains(t, said, "too many open files: the limit is 12, raise it (ulimit -n, or LimitNOFILE of a unit)")
	require.False(t, p.mounted(mnt))
}

// TestTooFewDescriptors: with a limit of open files that is too low for any command there is one line that says so, and no panic of a package that is initialized.
func TestTooFewDescriptors(t *testing.T) {
	p := newPlace(t)
	for n := 4; n <= 12; n++ { // with 3 the loader of a dynamic program finds no library
		said, err := p.after(fmt.Sprintf("ulimit -n %d", n), "version")
		if err == nil {
			require.Greater(t, n, 6)
			require.Equal(t, "lanefs "+version+"\n", said, "%d", n)
			continue
		}
		require.Equal(t, fmt.Sprintf("lanefs: too many open files: the limit is %d, raise it (ulimit -n, or LimitNOFILE of a unit)\n", n), said, "%d", n)
	}
}

// TestDaemonDies: the command that waits for a daemon which dies says why, where the log is, and takes away what it has left.
func TestDaemonDies(t *testing.T) {
	p := newPlace(t)
	img, mnt, log := p.image("image", 32), p.mkdir("mnt"), p.path("log")
	const before = "level=INFO msg=\"of an earlier mount\"\npanic: an earlier one\n"
	require.NoError(t, os.WriteFile(log, []byte(before), 0o600))

	// By a reason that Go's runtime writes to the log: it is stopped when it has mounted, and killed by SIGABRT.
	p.env = append(p.env, dieMounted+"=1")
	said := p.fails("mount", "-o", "log="+log, img, mnt)
	require.Contains(t, said, "the daemon died before the mount answered: SIGABRT: abort; its log is "+`"`+log+`"`)
	require.False(t, p.mounted(mnt))
	for _, f := range p.leftovers(mnt) {
		require.NotContains(t, f, lockEnd)
		require.NotContains(t, f, socketEnd)
	}
	p.env[len(p.env)-1] = dieMounted + "=panic" // with the log in its usual place
	require.Regexp(t, `the daemon died before the mount answered: panic: planted.*; its log is "/`, p.fails("mount", img, mnt))
	require.False(t, p.mounted(mnt))
	p.env = p.env[:len(p.env)-1]
	p.ok("mount", img, mnt)
	p.ok("umount", mnt)
	fsck(t, img)

	require.Equal(t, "it said nothing (exit status 3); its log is "+`"`+log+`"`, lastWords("", log, int64(len(p.daemonLog("log"))), exited(t, "exit 3")))
	require.Equal(t, "it said nothing (signal: killed)", lastWords("", p.path("none"), 0, exited(t, "kill -9 $$")))
	require.Equal(t, "fakecgo: pthread_create failed: 11: "+noMoreThreads, lastWords("fakecgo: pthread_create failed: 11", log, 0, nil))
}

// dieMounted has the test binary, being a daemon, die when its mount is there.
const dieMounted = "LANEFS_TEST_DIE_MOUNTED"

func dieWhenMounted() {
	if os.Getenv(dieMounted) == "panic" && os.Getenv(daemonEnv) != "" {
		beforeAnswer = func() { panic("planted") }
	} else if os.Getenv(dieMounted) != "" && os.Getenv(daemonEnv) != "" {
		beforeAnswer = func() { _ = syscall.Kill(os.Getpid(), unix.SIGABRT); select {} }
	}
}

// exited is how a shell that ran script has ended.
func exited(t *testing.T, script string) *os.ProcessState {
	t.Helper()
	c := exec.Command("sh", "-c", script)
	require.Error(t, c.Run())
	return c.ProcessState
}
