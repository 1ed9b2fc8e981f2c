package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/uring/uringtest"
)

// freezer is a control group whose processes can be frozen, of either version.
type freezer struct {
	t       *testing.T
	dir     string
	version int
}

func newFreezer(t *testing.T, pid int) *freezer {
	for _, top := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/freezer"} {
		dir, err := os.MkdirTemp(top, "lanefs-test-")
		if err != nil {
			continue
		}
		f := &freezer{t: t, dir: dir}
		if _, err := os.Stat(filepath.Join(dir, "cgroup.freeze")); err == nil {
			f.version = 2
		} else if _, err := os.Stat(filepath.Join(dir, "freezer.state")); err == nil {
			f.version = 1
		} else {
			_ = os.Remove(dir)
			continue
		}
		before, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		require.NoError(t, err)
		t.Cleanup(func() {
			f.set(false)
			f.leave(top, string(before), pid)
			_ = os.Remove(dir)
		})
		require.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(itoa(pid)), 0))
		return f
	}
	t.Skip("SKIPPED: no control group that freezes can be made here")
	return nil
}

// leave puts a process that still runs back where it was.
func (f *freezer) leave(top, before string, pid int) {
	for line := range strings.Lines(before) {
		if p := strings.SplitN(strings.TrimSpace(line), ":", 3); len(p) == 3 && (p[1] == "freezer") == (f.version == 1) && (p[1] == "") == (f.version == 2) {
			_ = os.WriteFile(filepath.Join(top, p[2], "cgroup.procs"), []byte(itoa(pid)), 0)
		}
	}
}

func (f *freezer) set(frozen bool) {
	name, value := "freezer.state", "THAWED"
	switch {
	case f.version == 2 && frozen:
		name, value = "cgroup.freeze", "1"
	case f.version == 2:
		name, value = "cgroup.freeze", "0"
	case frozen:
		value = "FROZEN"
	}
	require.NoError(f.t, os.WriteFile(filepath.Join(f.dir, name), []byte(value), 0))
}

// frozen says whether all of the group's threads are.
func (f *freezer) frozen() bool {
	name, want := "freezer.state", "FROZEN"
	if f.version == 2 {
		name, want = "cgroup.events", "frozen 1"
	}
	b, err := os.ReadFile(filepath.Join(f.dir, name))
	require.NoError(f.t, err)
	return strings.Contains(string(b), want)
}

// TestFrozen freezes the daemon while a program writes files, then the program, then both. A program waits for a frozen daemon, a daemon
// for no program, and when they are thawed no request is lost, by either transport.
func TestFrozen(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root")
	}
	for _, way := range []string{"on", "off"} {
		t.Run("io_uring="+way, func(t *testing.T) {
			uringtest.Enable(t)
			p := newPlace(t)
			image, mnt, enough := p.image("image", 64, "-N", "60000"), p.mkdir("mnt"), p.path("enough")
			p.ok("mount", "-o", "io_uring="+way, image, mnt)
			r, err := p.stat(mnt)
			require.NoError(t, err)
			last := func() (n int) {
				names, err := os.ReadDir(mnt)
				require.NoError(t, err)
				return len(names)
			}
			program := exec.Command("sh", "-c", `i=0; while [ ! -e "$1" ]; do echo text $i >"$0/$i" && sync -d "$0/$i" || exit 1; i=$((i+1)); done`, mnt, enough)
			require.NoError(t, program.Start())
			p.children = append(p.children, program)
			p.eventually("the program is at work", func() bool { return last() > 5 })

			daemon := newFreezer(t, r.PID)
			daemon.set(true)
			p.eventually("the daemon is frozen, though it waits for requests", daemon.frozen)
			time.Sleep(50 * time.Millisecond)
			require.False(t, gone(program.Process.Pid), "a program waits for a frozen daemon")
			daemon.set(false)
			n := last()
			p.eventually("the program goes on", func() bool { return last() > n+5 })

			client := newFreezer(t, program.Process.Pid)
			client.set(true)
			// Its shell is frozen between two requests; what it runs is outside, or comes to its end.
			p.eventually("the program is frozen", client.frozen)
			require.NoError(t, os.WriteFile(filepath.Join(mnt, "another's"), []byte("x"), 0o644))
			daemon.set(true)
			p.eventually("both are frozen", daemon.frozen)
			client.set(false)
			time.Sleep(20 * time.Millisecond)
			client.set(true) // it may wait for the daemon now, and is frozen when it has its answer
			time.Sleep(20 * time.Millisecond)
			daemon.set(false)
			p.eventually("the program is frozen again", client.frozen)
			client.set(false)
			require.NoError(t, os.WriteFile(enough, nil, 0o600))
			require.NoError(t, program.Wait())
			require.NoError(t, os.Remove(filepath.Join(mnt, "another's")))
			require.NoError(t, os.Remove(filepath.Join(mnt, "lost+found")))
			for i := range last() {
				b, err := os.ReadFile(filepath.Join(mnt, itoa(i)))
				require.NoError(t, err)
				require.Equal(t, fmt.Sprintf("text %d\n", i), string(b))
			}
			p.ok("umount", mnt)
			fsck(t, image)
		})
	}
}
