package lanefs_test

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/share/sharetest"
	lanefs "github.com/lanefs/lanefs/sdk/go"
)

// stopped is a program that is stopped between its lines: with a mapping, memory of its own, a stage and a ring; then with a request that the device holds back.
func stopped(path string) error {
	in := bufio.NewScanner(os.Stdin)
	say := func(format string, args ...any) {
		fmt.Printf(format+"\n", args...)
		in.Scan()
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	s, err := lanefs.Connect(f)
	if err != nil {
		return err
	}
	b, err := s.Map(f, 0, 0)
	if err != nil {
		return err
	}
	file, err := s.Open(f)
	if err != nil {
		return err
	}
	g, err := s.NewStage(lanefs.StageOptions{Size: mib})
	if err != nil {
		return err
	}
	say("%x %v", sha256.Sum256(b.Bytes()), b.Current())

	if err := s.Wait(time.Minute); err != nil {
		return err
	}
	now := make([]byte, sizeOf(f.Stat()))
	if _, err := g.Read(file, now, []lanefs.Piece{{Len: int64(len(now))}}); err != nil {
		return err
	}
	say("%x %v %x", sha256.Sum256(b.Bytes()), b.Current(), sha256.Sum256(now))

	f.Close() // or the mount is busy
	read := make(chan error)
	go func() {
		_, err := g.Read(file, now, []lanefs.Piece{{Len: int64(len(now))}})
		read <- err
	}()
	say("reads")
	err = <-read
	gone := s.Wait(time.Minute)
	_, again := g.Read(file, now, []lanefs.Piece{{Len: 1}})
	say("%x %v %v %v %v", sha256.Sum256(b.Bytes()), b.Current(), err == nil || errors.Is(err, lanefs.ErrGone), gone, errors.Is(again, lanefs.ErrGone))
	return nil
}

func sizeOf(fi os.FileInfo, err error) int64 {
	if err != nil {
		return -1
	}
	return fi.Size()
}

// stop stops a program, and go on has it go on.
func stop(t *testing.T, p *sharetest.Program) (goOn func()) {
	t.Helper()
	require.NoError(t, p.Process.Signal(unix.SIGSTOP))
	var status unix.WaitStatus
	_, err := unix.Wait4(p.Process.Pid, &status, unix.WUNTRACED, nil)
	require.NoError(t, err)
	require.True(t, status.Stopped())
	return func() {
		require.NoError(t, p.Process.Signal(unix.SIGCONT))
		p.GoOn()
	}
}

// ends fails the test if f takes long.
func ends(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(2 * time.Minute):
		require.FailNow(t, "does not end", what)
	}
}

// TestStoppedClient: a program that is stopped holds up nobody who changes the file that it has, who wants device memory, or who unmounts. When it goes on it has the bytes that it
// had, and knows that they are no longer the file's.
func TestStoppedClient(t *testing.T) {
	m := sharetest.New(t, 256*mib, 16*mib)
	size := int64(4 * mib)
	data := random(30, int(size))
	f := m.Write("file", data)
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self, f.Name())
	cmd.Env = append(os.Environ(), beChild+"=stopped")
	p := sharetest.Start(t, cmd)
	was := fmt.Sprintf("%x", sha256.Sum256(data))
	require.Equal(t, was+" true", p.Says())
	goOn := stop(t, p)

	s := connect(t, f)
	fd := int(f.Fd())
	for _, c := range []struct {
		what string
		do   func() error
	}{
		{"write", func() error { _, err := f.WriteAt([]byte("new"), mib); return err }},
		{"truncate", func() error { return f.Truncate(3*mib - 5) }},
		{"grow", func() error { return f.Truncate(size + 5) }},
		{"punch", func() error {
			return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 4097, mib)
		}},
		{"rename", func() error { return os.Rename(m.Path("file"), m.Path("other")) }},
		{"rename over", func() error {
			if err := os.WriteFile(m.Path("new"), []byte("new"), 0o644); err != nil {
				return err
			}
			return os.Rename(m.Path("new"), m.Path("other"))
		}},
		{"write without a name", func() error { _, err := f.WriteAt([]byte("newer"), 2*mib); return err }},
	} {
		ends(t, c.what, func() { require.NoError(t, c.do(), c.what) })
		now := contentOf(t, f)
		b, err := s.Map(f, 0, 0)
		require.NoError(t, err, c.what)
		require.True(t, b.Current(), c.what)
		require.True(t, bytes.Equal(now, b.Bytes()), c.what)
		require.NoError(t, b.Close())
	}
	for i := range 5 { // all of the pool, but what it holds
		f := m.Write(fmt.Sprint("more ", i), random(uint64(31+i), int(size)))
		b, err := s.Map(f, 0, 0)
		require.NoError(t, err)
		require.True(t, bytes.Equal(random(uint64(31+i), int(size)), b.Bytes()))
		require.NoError(t, b.Close())
		require.NoError(t, f.Close())
	}
	now := fmt.Sprintf("%x", sha256.Sum256(contentOf(t, f)))
	goOn()
	require.Equal(t, was+" false "+now, p.Says())

	_, release := m.Hold(func(q *blockdev.Request) bool { return q.Op == blockdev.OpRead })
	p.GoOn()
	require.Equal(t, "reads", p.Says())
	goOn = stop(t, p)
	release()
	require.NoError(t, s.Close())
	require.NoError(t, f.Close())
	ends(t, "the unmount", m.Close)
	goOn()
	require.Equal(t, was+" false true <nil> true", p.Says())
	p.GoOn()
	require.NoError(t, p.Wait())
}

func contentOf(t *testing.T, f *os.File) []byte {
	t.Helper()
	b := make([]byte, sizeOf(f.Stat()))
	_, err := f.ReadAt(b, 0)
	require.NoError(t, err)
	return b
}
