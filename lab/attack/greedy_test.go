package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/wire"
	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/lab/internal/drive"
)

// greedyEnv makes the test's program a greedy client; its value is the mount.
const greedyEnv = "LANEFS_GREEDY"

// A limit as the test sets it.
const (
	someConns, someFDs, someRings, someHandles = 20, 100, 10, 40
)

const manyBytes = 1 << 30

// greedy takes as much as it gets of each resource. It prints how much that was, and the error that ended it.
func greedy(mnt string) {
	fail := func(what string, err error) {
		fmt.Println("failed:", what, err)
		os.Exit(1)
	}
	f, err := os.Open(filepath.Join(mnt, readable))
	if err != nil {
		fail("open", err)
	}
	w, err := os.OpenFile(filepath.Join(mnt, writable), os.O_RDWR, 0)
	if err != nil {
		fail("open", err)
	}
	var path [256]byte
	n, err := unix.Fgetxattr(int(f.Fd()), "system.lanefs.share", path[:])
	if err != nil {
		fail("attribute", err)
	}
	type session struct {
		*wire.Conn
		keep []int
	}
	dial := func() (*session, error) {
		c, err := wire.Dial(string(path[:n]))
		if err != nil {
			fail("dial", err)
		}
		s := &session{Conn: c}
		s.keep, err = c.Call(wire.THello, 1, &wire.Hello{Magic: wire.Magic, Least: 1, Most: 1}, &wire.HelloReply{}, 2)
		return s, err
	}
	// full is as many connections as the user may have. When they are there the daemon has freed all that those before them had: until then it counts these.
	full := func() (all []*session) {
		for len(all) < someConns {
			c, err := dial()
			if err != nil {
				c.Close()
				time.Sleep(10 * time.Millisecond)
				continue
			}
			all = append(all, c)
		}
		return all
	}
	memfd, err := unix.MemfdCreate("greedy", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		fail("memfd", err)
	}
	if err := unix.Ftruncate(memfd, 1<<45); err != nil {
		fail("memfd", err)
	}
	// each takes one more of a resource, on connection c.
	for _, thing := range []struct {
		what string
		take func(c *session) error
	}{
		{"rings", func(c *session) error {
			fds, err := c.Call(wire.TRing, 2, &wire.Ring{Entries: 8}, &wire.RingReply{}, 3)
			wire.CloseAll(fds)
			return err
		}},
		{"registered", func(c *session) error {
			_, err := c.Call(wire.TRegister, 2, &wire.Register{Kind: uint32(gpu.ExportMemFD), Size: manyBytes / 8}, &wire.RegisterReply{}, 0, memfd)
			return err
		}},
		{"registered at once", func(c *session) error {
			_, err := c.Call(wire.TRegister, 2, &wire.Register{Kind: uint32(gpu.ExportMemFD), Size: 1 << 45}, &wire.RegisterReply{}, 0, memfd)
			return err
		}},
		{"private", func(c *session) error {
			fds, err := c.Call(wire.TMap, 2, &wire.Map{Len: 2 << 20, Flags: wire.MapPrivate | wire.MapEmpty}, &wire.MapReply{}, 1, int(w.Fd()))
			wire.CloseAll(fds)
			return err
		}},
		{"handles", func(c *session) error {
			_, err := c.Call(wire.TOpen, 2, &wire.Open{}, &wire.OpenReply{}, 0, int(f.Fd()))
			return err
		}},
	} {
		got, refused := 0, error(nil)
		all := full()
		for got < 4*len(all) {
			if refused = thing.take(all[got/4]); refused != nil {
				break
			}
			got++
		}
		fmt.Printf("%s: %d: %v\n", thing.what, got, refused)
		for _, c := range all {
			c.Close()
			wire.CloseAll(c.keep)
		}
	}
	all := full()
	for len(all) < 2000 {
		c, err := dial()
		if err != nil {
			fmt.Printf("connections: %d: %v\n", len(all), err)
			break
		}
		all = append(all, c)
	}
	for i := range 500 { // lines for the log
		c, err := wire.Dial(string(path[:n]))
		if err == nil {
			_ = c.Send([]byte{byte(i)})
			c.Close()
		}
	}
	f.Close()
	w.Close()
	fmt.Println("done")
	time.Sleep(time.Hour)
}

// TestLimits: a user gets no more of any resource than the mount's options allow, and another user gets as much.
func TestLimits(t *testing.T) {
	needs(t)
	dir, err := os.MkdirTemp(drive.Memory(), "lanefs-attack-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o711))
	a := &arena{config: config{Bound: bound, Lanefs: build(t), Say: t.Logf}, dir: dir, image: filepath.Join(dir, "image"), mnt: filepath.Join(dir, "mnt")}
	t.Cleanup(func() { _ = a.cleanUp(); os.RemoveAll(dir) })
	require.NoError(t, os.Mkdir(a.mnt, 0o755))
	require.NoError(t, os.WriteFile(a.image, nil, 0o600))
	require.NoError(t, os.Truncate(a.image, 64<<20))
	_, err = drive.Run("mkfs.ext4", "-q", "-F", "-b", "4096", a.image)
	require.NoError(t, err)
	options := fmt.Sprintf("vram=32M,log=%s,share_connections=%d,share_descriptors=%d,share_rings=%d,share_handles=%d,share_registered=%d,share_held=8M",
		filepath.Join(dir, "log"), someConns, someFDs, someRings, someHandles, manyBytes)
	_, err = a.lanefs("mount", "--gpu", "host", "-o", options, a.image, a.mnt)
	require.NoError(t, err)
	text, err := a.lanefs("stat", "--json", a.mnt)
	require.NoError(t, err)
	var stat struct{ PID int }
	require.NoError(t, json.Unmarshal([]byte(text), &stat))
	a.pid = stat.PID
	v, err := a.victim()
	require.NoError(t, err)

	got := map[string]string{}
	for _, uid := range []uint32{65534, 65533} { // the second gets as much as the first, which still holds its share
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = []string{greedyEnv + "=" + a.mnt}
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}, Pdeathsig: syscall.SIGKILL}
		pipe, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		lines := make(chan string)
		go func() {
			defer close(lines)
			var buf []byte
			var b [4096]byte
			for {
				n, err := pipe.Read(b[:])
				buf = append(buf, b[:n]...)
				for {
					line, rest, ok := strings.Cut(string(buf), "\n")
					if !ok {
						break
					}
					lines <- line
					buf = []byte(rest)
				}
				if err != nil {
					return
				}
			}
		}()
		for end := time.After(a.Bound); ; {
			var line string
			select {
			case line = <-lines:
			case <-end:
				require.FailNow(t, "it does not come to its end")
			}
			require.NotContains(t, line, "failed:")
			if line == "done" || line == "" {
				require.Equal(t, "done", line)
				break
			}
			what, rest, _ := strings.Cut(line, ": ")
			got[what] = rest
			t.Logf("%d: %s", uid, line)
		}
		for what, want := range map[string]string{
			"rings":              fmt.Sprintf("%d: too many rings", someRings),
			"registered":         "8: too many bytes of registered memory",
			"registered at once": "0: too many bytes of registered memory",
			"private":            "4: too many bytes of the pool",
			"handles":            fmt.Sprintf("%d: too many files, mappings and registered memories", someHandles),
			"connections":        fmt.Sprintf("%d: too many connections", someConns),
		} {
			require.True(t, strings.HasPrefix(got[what], want), "%s: %q, want %q", what, got[what], want)
			require.Contains(t, got[what], "-o share_", what)
		}
		require.NoError(t, v.check(), "another user meanwhile")
	}
	text, err = a.lanefs("vram", "ls", a.mnt)
	require.NoError(t, err)
	require.Regexp(t, `(?m)^65534 +20 +60 `, text)
	require.Regexp(t, `(?m)^65533 +20 +60 `, text)
	require.Regexp(t, `(?m)^limit +20 +100 +10 +40 `, text)
	log, err := os.ReadFile(filepath.Join(dir, "log"))
	require.NoError(t, err)
	require.Less(t, strings.Count(string(log), "\n"), 60, "two users have caused 1,000 lines")
	v.close()
	_, err = a.lanefs("umount", a.mnt) // with both still connected
	require.NoError(t, err)
}
