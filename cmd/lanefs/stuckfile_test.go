package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs"
	"github.com/lanefs/lanefs/fs/share/wire"
	lanefs "github.com/lanefs/lanefs/sdk/go"
)

// The test binary is also a file system that does not answer, mounted at the value, and a client that passes its file and
// that of the mount, the value being both, a line each.
const (
	beStuck   = "LANEFS_TEST_STUCK"
	beHostile = "LANEFS_TEST_HOSTILE"
)

// stuck is a file system with one file that can be opened, and never closed: nothing else is answered.
type stuck struct{ gofs.Inode }

type stuckFile struct {
	gofs.Inode
	opened bool
}

func (s *stuck) OnAdd(ctx context.Context) {
	s.AddChild("file", s.NewPersistentInode(ctx, &stuckFile{}, gofs.StableAttr{Ino: 2, Mode: unix.S_IFREG}), true)
}

func (f *stuckFile) Getattr(_ context.Context, _ gofs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	if f.opened {
		select {}
	}
	out.Mode, out.Size = unix.S_IFREG|0o666, 1<<20
	return 0
}

func (f *stuckFile) Open(context.Context, uint32) (gofs.FileHandle, uint32, syscall.Errno) {
	f.opened = true
	return f, 0, 0
}

func (f *stuckFile) Read(_ context.Context, _ gofs.FileHandle, b []byte, _ int64) (fuse.ReadResult, syscall.Errno) {
	return fuse.ReadResultData(b), 0
}

func (f *stuckFile) Write(context.Context, gofs.FileHandle, []byte, int64) (uint32, syscall.Errno) {
	select {}
}
func (f *stuckFile) Flush(context.Context, gofs.FileHandle) syscall.Errno { select {} }

func serveStuck(dir string) error {
	s, err := gofs.Mount(dir, &stuck{}, &gofs.Options{MountOptions: fuse.MountOptions{DirectMount: true, AllowOther: os.Geteuid() == 0}})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	s.Wait()
	return nil
}

// hostile passes the descriptor of a file that cannot be closed in every way it can think of.
func hostile(files string, in io.Reader) error {
	own, stuckFile, _ := strings.Cut(files, "\n")
	f, err := os.Open(own)
	if err != nil {
		return err
	}
	bad, err := unix.Open(stuckFile, unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	page, err := unix.Mmap(bad, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	page[0] = 1 // so closing waits for a WRITE, too
	var path [256]byte
	n, err := unix.Fgetxattr(int(f.Fd()), "system.lanefs.share", path[:])
	if err != nil {
		return err
	}
	dial := func() *wire.Conn {
		c, e := wire.Dial(string(path[:n]))
		err = errors.Join(err, e)
		return c
	}
	hello := &wire.Hello{Magic: wire.Magic, Least: 1, Most: 1}
	greet := func() *wire.Conn {
		c := dial()
		var r wire.HelloReply
		rights, e := c.Call(wire.THello, 1, hello, &r, 2)
		wire.CloseAll(rights)
		err = errors.Join(err, e)
		return c
	}
	var open []*wire.Conn
	refused := func(c *wire.Conn, kind wire.Type, body any, want syscall.Errno, rights ...int) {
		_, e := c.Call(kind, 2, body, nil, 0, rights...)
		if !errors.Is(e, want) {
			err = errors.Join(err, fmt.Errorf("a request of type %d with another file system's file: %v, want %v", kind, e, want))
		}
		open = append(open, c)
	}
	holder := greet()
	var m wire.MapReply
	rights, e := holder.Call(wire.TMap, 1, &wire.Map{}, &m, 1, int(f.Fd()))
	wire.CloseAll(rights)
	err = errors.Join(err, e)
	refused(holder, wire.TMap, &wire.Map{}, unix.EXDEV, bad)
	refused(greet(), wire.TOpen, &wire.Open{}, unix.EXDEV, bad)
	refused(greet(), wire.TRegister, &wire.Register{Kind: 1, Size: 4096}, unix.EINVAL, bad)
	refused(greet(), wire.TRegister, &wire.Register{Kind: 4, Size: 4096}, unix.EINVAL, bad)
	refused(greet(), wire.TRelease, &wire.Release{Handle: m.Handle}, unix.EPROTO, bad, bad)
	refused(dial(), wire.THello, hello, unix.EPROTO, bad)
	for _, message := range [][]byte{{1}, make([]byte, 4096), wire.Encode(wire.Header{Type: wire.TOpen}, &wire.Open{})} {
		c := dial() // too short, too long, no Hello
		all := make([]int, 200)
		for i := range all {
			all[i] = bad
		}
		err = errors.Join(err, c.Send(message, all...))
		open = append(open, c)
	}
	for range 3 { // what no program reads, of a client that stays and one that goes
		c, gone := greet(), greet()
		for range 5 {
			err = errors.Join(err, c.Send([]byte{1}, bad), gone.Send([]byte{1}, bad))
		}
		gone.Close()
		open = append(open, c)
	}
	if err != nil {
		return err
	}
	f.Close() // an open file would keep the mount busy
	fmt.Println("passed")
	for lines := bufio.NewScanner(in); lines.Scan(); { // "more"
		for range 64 {
			refused(greet(), wire.TOpen, &wire.Open{}, unix.EXDEV, bad)
		}
		if err != nil {
			return err
		}
		for end := time.Now().Add(5 * time.Minute); err == nil; time.Sleep(50 * time.Millisecond) {
			c := greet()
			c.Close()
			if time.Now().After(end) {
				return errors.New("nothing was refused")
			}
		}
		fmt.Println(err)
		err = nil
	}
	return nil
}

// TestForeignFileSystem: a descriptor that its file system does not let go holds up the client that passed it, and no other.
func TestForeignFileSystem(t *testing.T) {
	p := newPlace(t)
	image, dir, stuckDir := p.image("image", 128), p.mkdir("mnt"), p.mkdir("stuck")
	p.ok("mount", "--gpu", "host", "-o", "vram=8M", image, dir)
	path := filepath.Join(dir, "file")
	data := bytes.Repeat([]byte("0123456789"), 300000)
	require.NoError(t, os.WriteFile(path, data, 0o644))
	require.NoError(t, os.WriteFile(path+"2", make([]byte, 6<<20), 0o644))
	st, err := p.stat(dir)
	require.NoError(t, err)
	gate := childOf(t, st.PID)
	status, err := os.ReadFile(filepath.Join("/proc", itoa(gate), "status"))
	require.NoError(t, err)
	require.Regexp(t, `(?m)^CapEff:\s*0+$`, string(status))
	require.Regexp(t, `(?m)^CapPrm:\s*0+$`, string(status))
	require.Regexp(t, `(?m)^NoNewPrivs:\s*1$`, string(status))

	t.Cleanup(func() { fs.Detach(stuckDir) })
	server, says, _ := p.child(beStuck, stuckDir)
	require.Equal(t, "ready", says())
	client, says, tell := p.child(beHostile, path+"\n"+filepath.Join(stuckDir, "file"))
	require.Equal(t, "passed", says())

	works := func() {
		f, err := os.OpenFile(path+"2", os.O_RDWR, 0)
		require.NoError(t, err)
		defer f.Close()
		s, err := lanefs.Connect(f)
		require.NoError(t, err)
		defer s.Close()
		b, err := s.MapPrivate(f, 0, 1<<20)
		require.NoError(t, err)
		b.Bytes()[7]++
		require.NoError(t, b.Commit(f, 0, 0, b.Len()))
		require.NoError(t, b.Close())
		r, err := s.NewRing(64)
		require.NoError(t, err)
		require.NoError(t, r.Close())
	}
	works()
	p.eventually("what the client holds is given back, though it lives", func() bool {
		return !strings.Contains(p.ok("vram", "ls", "--json", dir), `"holders": 1`) && p.residents(dir).Residents[0].Holders == 0
	})
	require.Contains(t, p.ok("vram", "pin", path+"2"), "pinned") // of 8 MiB, so the other file goes
	works()
	list, err := os.ReadDir(filepath.Join("/proc", itoa(st.PID), "fd"))
	require.NoError(t, err)
	for _, fd := range list {
		to, _ := os.Readlink(filepath.Join("/proc", itoa(st.PID), "fd", fd.Name()))
		require.False(t, strings.HasPrefix(to, stuckDir), "the daemon has %s", to)
	}
	tell("more\n")
	require.Contains(t, says(), "not closed yet, for their file systems do not answer")

	p.ok("umount", dir)
	p.eventually("the daemon ends", func() bool { return gone(st.PID) })
	fsck(t, image)
	p.ok("mount", "--gpu", "host", "-o", "vram=8M", image, dir)
	works()
	p.ok("umount", dir)

	require.False(t, gone(gate), "or this test has shown nothing")
	require.NoError(t, server.Kill())
	p.eventually("what waited ends with the file system", func() bool { return gone(gate) })
	require.NoError(t, client.Kill())
}

// child starts the test binary as something else; says reads a line of it, and tell tells it something. It is killed before
// the test ends, and waited for once all are: the end of one may be what another's waits for.
func (p *place) child(what, value string) (_ *os.Process, says func() string, tell func(string)) {
	p.t.Helper()
	c := exec.Command(p.bin)
	c.Env = append(os.Environ(), what+"="+value)
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	require.NoError(p.t, err)
	out, err := c.StdoutPipe()
	require.NoError(p.t, err)
	require.NoError(p.t, c.Start())
	p.children = append(p.children, c)
	lines := bufio.NewScanner(out)
	return c.Process, func() string { lines.Scan(); return lines.Text() }, func(s string) {
		_, err := io.WriteString(in, s)
		require.NoError(p.t, err)
	}
}

// childOf is the only child of a process.
func childOf(t *testing.T, pid int) int {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/status")
	require.NoError(t, err)
	var children []int
	for _, name := range all {
		b, _ := os.ReadFile(name) // it may have ended
		if bytes.Contains(b, []byte("\nPPid:\t"+itoa(pid)+"\n")) {
			child, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			require.NoError(t, err)
			children = append(children, child)
		}
	}
	require.Len(t, children, 1)
	return children[0]
}
