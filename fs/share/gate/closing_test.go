package gate

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func newProcess() *process {
	return &process{gpus: map[uint32]bool{}, slow: map[uint32]int{}, unclosed: map[uint32][]*net.UnixConn{}, clients: map[uint32]int{}}
}

// TestSlowClosings: what does not end within closeTimeout counts until it ends. A user with maxSlow of them is refused and others are not, unless all have maxSlowAll.
func TestSlowClosings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess()
		require.True(t, p.withTimeout(1, func() { time.Sleep(closeTimeout - 1) }))
		require.Empty(t, p.slow)
		end := make(chan struct{})
		slow := func(uid uint32, n int) {
			for range n {
				go p.withTimeout(uid, func() { <-end })
			}
			time.Sleep(closeTimeout)
			synctest.Wait()
		}
		start := time.Now()
		require.False(t, p.withTimeout(1, func() { <-end }))
		require.Equal(t, closeTimeout, time.Since(start))
		slow(1, maxSlow-2)
		require.NoError(t, p.refusal(1))
		slow(1, 1)
		require.Equal(t, maxSlow, p.slow[1])
		require.ErrorIs(t, p.refusal(1), unix.EBUSY)
		require.NoError(t, p.refusal(2))
		for uid := uint32(2); uid < maxSlowAll/maxSlow; uid++ {
			slow(uid, maxSlow)
		}
		slow(1000, maxSlow-1)
		require.NoError(t, p.refusal(2000))
		slow(1000, 1)
		require.ErrorIs(t, p.refusal(2000), unix.EBUSY)
		close(end)
		synctest.Wait()
		require.Zero(t, p.slowAll)
		require.Empty(t, p.slow)
		require.NoError(t, p.refusal(1))
		require.NoError(t, p.refusal(2000))
	})
}

// TestUnclosed: a socket in which descriptors wait is kept while its user has maxSlow slow closings, and closed when one has ended; another user's at once.
func TestUnclosed(t *testing.T) {
	p := newProcess()
	waits := func() (u *net.UnixConn, open func() bool) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		t.Cleanup(func() { unix.Close(fds[0]) })
		require.NoError(t, unix.Sendmsg(fds[0], []byte("x"), unix.UnixRights(fds[0]), nil, 0))
		c, err := connOf(fds[1])
		require.NoError(t, err)
		return c.UnixConn, func() bool {
			raw, err := c.SyscallConn()
			return err == nil && raw.Control(func(uintptr) {}) == nil
		}
	}
	closes := func(open func() bool) {
		t.Helper()
		require.Eventually(t, func() bool { return !open() }, time.Minute, time.Millisecond)
	}
	p.count(7, maxSlow)
	first, firstOpen := waits()
	second, secondOpen := waits()
	p.disconnect(7, first)
	p.disconnect(7, second)
	require.Len(t, p.unclosed[7], 2)
	other, otherOpen := waits()
	p.disconnect(8, other)
	closes(otherOpen)
	p.count(7, 1)
	p.count(7, -1)
	require.True(t, firstOpen() && secondOpen(), "there is still no room")
	p.count(7, -1)
	closes(secondOpen)
	require.True(t, firstOpen())
	p.count(7, -1)
	closes(firstOpen)
	require.Empty(t, p.unclosed)
}

// TestClassify: memory is a memfd or a GPU's, what is of the mount is described, and all else is foreign.
func TestClassify(t *testing.T) {
	p := newProcess()
	name := filepath.Join(t.TempDir(), "file")
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o640)
	require.NoError(t, err)
	defer f.Close()
	memfd, err := unix.MemfdCreate("m", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	defer unix.Close(memfd)
	device, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	require.NoError(t, err)
	defer device.Close()
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	require.NoError(t, err)
	defer unix.Close(event)
	var pipe [2]int
	require.NoError(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC))
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	foreign := Right{Sort: Foreign, FD: -1}
	for what, fd := range map[string]int{"a file": int(f.Fd()), "a device": int(device.Fd()), "an eventfd": event, "a pipe": pipe[0], "nothing": 1 << 20} {
		require.Equal(t, foreign, p.classify(fd), what)
	}
	require.Equal(t, Right{Sort: Memory, FD: memfd}, p.classify(memfd))
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(int(device.Fd()), &st))
	p.gpus[unix.Major(st.Rdev)] = true
	require.Equal(t, Right{Sort: Memory, FD: int(device.Fd())}, p.classify(int(device.Fd())), "a GPU's")

	require.NoError(t, unix.Fstat(int(f.Fd()), &st))
	p.dev = st.Dev
	own := p.classify(int(f.Fd()))
	require.Equal(t, Right{Sort: Own, FD: -1, Flags: own.Flags, Inode: st.Ino, Mode: st.Mode}, own)
	require.EqualValues(t, unix.O_RDWR|unix.O_APPEND, own.Flags&(unix.O_ACCMODE|unix.O_APPEND))
}
