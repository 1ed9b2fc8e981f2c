package fs

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestAppend: records that two processes append at once come out whole and complete.
func TestAppend(t *testing.T) {
	const records = 300
	modes(t, func(t *testing.T, m *mounted) {
		write(t, m.path("log"), "")
		a := helper(t, "append", m.path("log"), "a")
		b := helper(t, "append", m.path("log"), "b")
		a.Stderr, b.Stderr = os.Stderr, os.Stderr
		require.NoError(t, a.Start())
		require.NoError(t, b.Start())
		require.NoError(t, a.Wait())
		require.NoError(t, b.Wait())
		got, err := os.ReadFile(m.path("log"))
		require.NoError(t, err)
		next := map[string]int{}
		for line := range bytes.Lines(got) {
			var who string
			var i int
			_, err := fmt.Sscanf(string(line), "%1s %d", &who, &i)
			require.NoError(t, err, "%q", line)
			require.Equal(t, next[who], i, "%q", line)
			next[who]++
		}
		require.Equal(t, map[string]int{"a": records, "b": records}, next)
	})
}

func appendHelper(args []string) {
	f, err := os.OpenFile(args[0], os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		die("%v", err)
	}
	for i := range 300 {
		if _, err := fmt.Fprintf(f, "%s %d %0*d\n", args[1], i, 1+i%200, 0); err != nil {
			die("%v", err)
		}
	}
	if err := f.Close(); err != nil {
		die("%v", err)
	}
}

// TestMmap: what is written through a mapping is read through a descriptor and the other way round. In a child: a page
// fault stops the whole Go runtime, so it must not be the process that serves the mount.
func TestMmap(t *testing.T) {
	modes(t, func(t *testing.T, m *mounted) {
		out, err := helper(t, "mmap", m.path("mapped")).CombinedOutput()
		require.NoError(t, err, "%s", out)
		got, err := os.ReadFile(m.path("mapped"))
		require.NoError(t, err)
		require.Equal(t, "written through", string(got[5000:5015]))
		require.Equal(t, "the descriptor!", string(got[9000:9015]))
	})
}

func mmapHelper(args []string) {
	f, err := os.Create(args[0])
	if err != nil {
		die("%v", err)
	}
	if err := f.Truncate(1 << 16); err != nil {
		die("%v", err)
	}
	p, err := unix.Mmap(int(f.Fd()), 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		die("mmap: %v", err)
	}
	copy(p[5000:], "written through")
	buf := make([]byte, 15)
	if _, err := f.ReadAt(buf, 5000); err != nil || string(buf) != "written through" {
		die("read %q of what the mapping wrote: %v", buf, err)
	}
	if _, err := f.WriteAt([]byte("the descriptor!"), 9000); err != nil {
		die("%v", err)
	}
	if string(p[9000:9015]) != "the descriptor!" {
		die("the mapping has %q of what was written", p[9000:9015])
	}
	if err := unix.Msync(p, unix.MS_SYNC); err != nil {
		die("msync: %v", err)
	}
	if err := unix.Munmap(p); err != nil {
		die("munmap: %v", err)
	}
}

// TestLocks: locks of one process exclude another; the kernel does that.
func TestLocks(t *testing.T) {
	m := newMount(t, Options{})
	f, err := os.Create(m.path("locked"))
	require.NoError(t, err)
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK, Len: 10}
	require.NoError(t, unix.FcntlFlock(f.Fd(), unix.F_SETLK, &lock))
	require.Error(t, helper(t, "trylock", f.Name(), "0").Run(), "a locked range was locked again")
	require.NoError(t, helper(t, "trylock", f.Name(), "10").Run())
	lock.Type = unix.F_UNLCK
	require.NoError(t, unix.FcntlFlock(f.Fd(), unix.F_SETLK, &lock))
	require.NoError(t, helper(t, "trylock", f.Name(), "0").Run())
	require.NoError(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	g, err := os.Open(f.Name())
	require.NoError(t, err)
	defer g.Close()
	require.ErrorIs(t, unix.Flock(int(g.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

func tryLockHelper(args []string) {
	f, err := os.OpenFile(args[0], os.O_RDWR, 0)
	if err != nil {
		die("%v", err)
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK, Len: 5}
	fmt.Sscan(args[1], &lock.Start)
	if err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &lock); err != nil {
		die("%v", err)
	}
}
