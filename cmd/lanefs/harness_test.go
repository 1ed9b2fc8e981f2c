package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest/sparse"
	"github.com/lanefs/lanefs/fs/share/gate"
)

// The test binary is lanefs too, daemon included: so the race detector watches both.
const beLanefs = "LANEFS_TEST_MAIN"

func TestMain(m *testing.M) {
	gate.RunIfChild()
	if dir := os.Getenv(beStuck); dir != "" {
		if err := serveStuck(dir); err != nil {
			fmt.Fprintln(os.Stderr, "stuck:", err)
			os.Exit(1)
		}
		return
	}
	if dirs := os.Getenv(bePassing); dirs != "" {
		if err := servePassing(dirs); err != nil {
			fmt.Fprintln(os.Stderr, "passing:", err)
			os.Exit(1)
		}
		return
	}
	if files := os.Getenv(beHostile); files != "" {
		if err := hostile(files, os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, "hostile:", err)
			os.Exit(1)
		}
		return
	}
	if path := os.Getenv(beClient); path != "" {
		if err := client(path, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "client:", err)
			os.Exit(1)
		}
		return
	}
	if os.Getenv(beLanefs) != "" {
		denyCalls()
		limitDriver()
		dieWhenMounted()
		main()
		return
	}
	code := m.Run()
	if shimDir != "" {
		os.RemoveAll(shimDir)
	}
	os.Exit(code)
}

// place is a directory for one test: images, mount points, a runtime directory of its own, and reports of races.
type place struct {
	t    *testing.T
	dir  string
	env  []string
	cred *syscall.Credential // nil: as we are
	bin  string
	dirs []string

	children []*exec.Cmd
}

// newPlace skips the test where nothing can be mounted.
func newPlace(t *testing.T) *place {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR, 0)
	if err != nil {
		t.Skipf("needs FUSE: /dev/fuse: %v", err)
	}
	unix.Close(fd)
	for _, tool := range []string{"mkfs.ext4", "e2fsck", "debugfs", "fusermount3"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s: make deps installs it", tool)
		}
	}
	where := "/dev/shm"
	if _, err := os.Stat(where); err != nil {
		where = ""
	}
	dir, err := os.MkdirTemp(where, "lanefs-cli-")
	require.NoError(t, err)
	bin, err := os.Executable()
	require.NoError(t, err)
	p := &place{t: t, dir: dir, bin: bin}
	require.NoError(t, os.Mkdir(p.path("run"), 0o700))
	p.env = append(os.Environ(), beLanefs+"=1", "GORACE=halt_on_error=0 atexit_sleep_ms=0 log_path="+p.path("race"),
		"XDG_RUNTIME_DIR="+p.path("run"))
	t.Cleanup(p.cleanUp)
	return p
}

func (p *place) path(name string) string { return filepath.Join(p.dir, name) }

// cleanUp ends what a failed test left and fails one that raced.
func (p *place) cleanUp() {
	for _, c := range p.children {
		c.Process.Kill()
	}
	for _, c := range p.children {
		c.Wait()
	}
	mounts, _ := mountinfo.GetMounts(mountinfo.PrefixFilter(p.dir))
	for _, m := range mounts {
		dir := m.Mountpoint
		if p.t.Failed() {
			out, _, _ := p.run("stat", dir)
			p.t.Logf("left mounted: %s\n%s", dir, out)
		} else {
			p.t.Errorf("left mounted: %s", dir)
		}
		if r, err := p.stat(dir); err == nil {
			syscall.Kill(r.PID, syscall.SIGKILL)
		}
		fs.Detach(dir)
	}
	for _, dir := range p.dirs {
		for _, f := range p.leftovers(dir) {
			if said, err := os.ReadFile(f); err == nil && p.t.Failed() && strings.HasSuffix(f, logEnd) {
				p.t.Logf("the daemon of %s said:\n%s", dir, said)
			}
			os.Remove(f)
		}
	}
	races, _ := filepath.Glob(p.path("race*"))
	for _, r := range races {
		b, _ := os.ReadFile(r)
		p.t.Errorf("the race detector says:\n%s", b)
	}
	os.RemoveAll(p.dir)
}

// command is lanefs with arguments, not started.
func (p *place) command(args ...string) *exec.Cmd {
	c := exec.Command(p.bin, args...)
	c.Env, c.Dir = p.env, p.dir
	if p.cred != nil {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: p.cred}
	}
	return c
}

// run runs lanefs to its end.
func (p *place) run(args ...string) (stdout, stderr string, err error) {
	var o, e bytes.Buffer
	c := p.command(args...)
	c.Stdout, c.Stderr = &o, &e
	err = c.Run()
	return o.String(), e.String(), err
}

// ok runs lanefs and wants success without a word on stderr.
func (p *place) ok(args ...string) string {
	p.t.Helper()
	out, errs, err := p.run(args...)
	require.NoError(p.t, err, "lanefs %q:\n%s%s", args, out, errs)
	if strings.Contains(errs, "still waiting for an unmount in the mount namespace of") { // another package's test has a mount namespace of its own
		p.t.Log(errs)
	} else {
		require.Empty(p.t, errs, "lanefs %q", args)
	}
	return out
}

// fails runs lanefs and wants one line on stderr and the status of a failure, not that of a crash.
func (p *place) fails(args ...string) string {
	p.t.Helper()
	status, errs := p.failsWith(args...)
	require.Contains(p.t, []int{exitFailed, exitUsage, fsckOperational, fsckUsage}, status, errs)
	return errs
}

// failsWith is fails, and gives the status.
func (p *place) failsWith(args ...string) (status int, said string) {
	p.t.Helper()
	out, errs, err := p.run(args...)
	var exit *exec.ExitError
	require.ErrorAs(p.t, err, &exit, "lanefs %q succeeded:\n%s%s", args, out, errs)
	require.Empty(p.t, out)
	require.True(p.t, strings.HasPrefix(errs, "lanefs: ") && strings.Count(errs, "\n") == 1 && strings.HasSuffix(errs, "\n"),
		"want one line, got %q", errs)
	return exit.ExitCode(), strings.TrimSpace(errs)
}

func (p *place) stat(dir string) (*report, error) {
	out, errs, err := p.run("stat", "--json", dir)
	if err != nil {
		return nil, &os.PathError{Op: "stat", Path: errs, Err: err}
	}
	var r report
	return &r, json.Unmarshal([]byte(out), &r)
}

// image makes a volume, of 4 KiB blocks unless told otherwise.
func (p *place) image(name string, mib int, mkfs ...string) string {
	p.t.Helper()
	path := p.path(name)
	require.NoError(p.t, os.WriteFile(path, nil, 0o600))
	require.NoError(p.t, os.Truncate(path, int64(mib)<<20))
	tool(p.t, "mkfs.ext4", append(append([]string{"-q", "-F", "-b", "4096", "-O", "metadata_csum_seed,orphan_file"}, mkfs...), path)...)
	return path
}

func (p *place) mkdir(name string) string {
	p.t.Helper()
	require.NoError(p.t, os.Mkdir(p.path(name), 0o755))
	p.dirs = append(p.dirs, p.path(name))
	return p.path(name)
}

// mounted says whether anything is mounted on dir.
func (p *place) mounted(dir string) bool {
	m, err := fs.MountedAt(dir)
	require.NoError(p.t, err)
	return m != nil
}

// eventually waits for what another process is about to do.
func (p *place) eventually(what string, f func() bool) {
	p.t.Helper()
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if f() {
			return
		}
	}
	require.Fail(p.t, "gave up waiting", what)
}

// kill kills a daemon, and returns when it has ended.
func (p *place) kill(pid int) {
	p.t.Helper()
	require.NoError(p.t, syscall.Kill(pid, syscall.SIGKILL))
	p.eventually("the daemon's end", func() bool { return gone(pid) })
}

// gone says whether a process has ended, all of its threads: a killed one's first thread may be a zombie while another
// still holds what it had open.
func gone(pid int) bool {
	proc := filepath.Join("/proc", itoa(pid))
	b, err := os.ReadFile(filepath.Join(proc, "stat"))
	if err != nil {
		return true
	}
	threads, err := os.ReadDir(filepath.Join(proc, "task"))
	return bytes.Contains(b, []byte(") Z ")) && (err != nil || len(threads) <= 1)
}

// leftovers are the files that a mount on dir has in the runtime directory.
func (p *place) leftovers(dir string) []string {
	var names []string
	for _, run := range []string{"/run/lanefs", "/run/lanefs-share", p.path("run/lanefs")} {
		entries, err := os.ReadDir(run)
		if err != nil && !os.IsNotExist(err) {
			p.t.Errorf("what a mount left there is not seen: %v", err)
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), runName(dir)) {
				names = append(names, filepath.Join(run, e.Name()))
			}
		}
	}
	return names
}

func tool(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(t, err, "%s %q:\n%s", name, args, out)
	return string(out)
}

// needsSfdisk skips the test where there is none.
func needsSfdisk(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("sfdisk"); err != nil {
		t.Skip("SKIPPED: needs sfdisk: make deps installs it")
	}
}

// partitioned writes a table of partitions, as sfdisk reads it, to an image.
func partitioned(t *testing.T, image, table string) {
	t.Helper()
	c := exec.Command("sfdisk", "-q", image)
	c.Stdin = strings.NewReader(table)
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// fsck wants e2fsck to find nothing.
func fsck(t *testing.T, image string) {
	t.Helper()
	tool(t, "e2fsck", "-fn", image)
}

// sum is another one for each content of a file. It reads no holes, which are most of an image.
func sum(t *testing.T, path string) [32]byte {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	st, err := f.Stat()
	require.NoError(t, err)
	h, page := sha256.New(), make([]byte, 4096)
	none := make([]byte, len(page))
	fmt.Fprintln(h, st.Size())
	require.NoError(t, sparse.Data(f, st.Size(), func(off, n int64) error {
		for at := off - off%int64(len(page)); at < off+n; at += int64(len(page)) {
			k, err := f.ReadAt(page, at)
			if err != nil && err != io.EOF {
				return err
			}
			if !bytes.Equal(page[:k], none[:k]) { // a hole may become zeroes by being read
				fmt.Fprintln(h, at)
				h.Write(page[:k])
			}
		}
		return nil
	}))
	return [32]byte(h.Sum(nil))
}
