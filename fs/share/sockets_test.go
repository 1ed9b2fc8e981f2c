package share

import (
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// leave leaves the socket of a killed daemon.
func leave(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
}

// free is the lock of a daemon that has ended.
func free(string) (func(), bool) { return func() {}, true }

// Only sockets without a listener are removed: no live socket, none with a full queue, no other file, and no socket of a daemon that is
// alive, even if it has no listener.
func TestSweep(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "[a-b]*")
	require.NoError(t, os.Mkdir(dir, 0o700))
	at := func(name string) string { return filepath.Join(dir, name) }
	leave(t, at("dead.share"))
	leave(t, at("dead.sock"))
	leave(t, at("alive.share"))
	require.NoError(t, os.WriteFile(at("file.share"), nil, 0o600))
	require.NoError(t, os.Symlink(at("dead.sock"), at("link.share")))
	live, err := listen(at("live.share"), 0o600)
	require.NoError(t, err)
	defer live.Close()

	full, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(full)
	require.NoError(t, unix.Bind(full, &unix.SockaddrUnix{Name: at("full.share")}))
	require.NoError(t, unix.Listen(full, 1))
	for err = nil; err == nil; { // until a caller would have to wait
		var fd int
		fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		require.NoError(t, err)
		defer unix.Close(fd)
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: at("full.share")})
	}
	require.ErrorIs(t, err, unix.EAGAIN)

	asleep, err := listen(at("asleep.share"), 0o600)
	require.NoError(t, err)
	defer asleep.Close()

	locks := func(base string) (func(), bool) { return func() {}, base != "alive" && base != "asleep" }
	removed, err := Sweep(dir, locks)
	require.NoError(t, err)
	require.Equal(t, []string{at("dead.share")}, removed)
	for _, name := range []string{"alive.share", "asleep.share", "dead.sock", "file.share", "link.share", "live.share", "full.share"} {
		_, err := os.Lstat(at(name))
		require.NoError(t, err, name)
	}
	removed, err = Sweep(dir, locks)
	require.NoError(t, err)
	require.Empty(t, removed)
	_, err = Sweep(at("none"), free)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, asleep.SetDeadline(time.Now().Add(100*time.Millisecond)))
	_, err = asleep.Accept()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "a daemon whose lock says that it lives is not woken")
}

// A socket is never swept away while it is being made, over a dead one or not.
func TestSweepUnderFire(t *testing.T) {
	dir := t.TempDir()
	stop := make(chan struct{})
	var sweepers sync.WaitGroup
	for range 2 {
		sweepers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := Sweep(dir, free); err != nil {
					t.Error(err)
				}
				time.Sleep(2 * time.Millisecond) // so that others get the lock
			}
		})
	}
	var makers sync.WaitGroup
	for i := range 4 {
		makers.Go(func() {
			path := filepath.Join(dir, string(rune('a'+i))+socketEnd)
			for range 200 {
				l, err := listen(path, 0o600)
				if err != nil {
					t.Error(err)
					return
				}
				c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
				if err != nil {
					t.Error("a live socket has gone: ", err)
				} else {
					c.Close()
				}
				l.SetUnlinkOnClose(false) // killed
				l.Close()
			}
		})
	}
	makers.Wait()
	close(stop)
	sweepers.Wait()
	_, err := Sweep(dir, free)
	require.NoError(t, err)
	left, err := filepath.Glob(filepath.Join(dir, "*"+socketEnd))
	require.NoError(t, err)
	require.Empty(t, left)
}
