package wire

import (
	"net"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// connected is the two ends of a connection.
func connected(t *testing.T) (ours, peer *Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	var ends [2]*Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		c, err := net.FileConn(f)
		require.NoError(t, err)
		f.Close()
		ends[i] = &Conn{UnixConn: c.(*net.UnixConn)}
		t.Cleanup(func() { c.Close() })
	}
	return ends[0], ends[1]
}

// TestWatchGone: that the peer has gone is told while a request is served, and once, also if the next request is in the socket already, which stays there.
func TestWatchGone(t *testing.T) {
	for name, c := range map[string]struct {
		events  int16
		leave   func(ours, peer *Conn)
		is, was bool // told; still readable
	}{
		"closed":                      {0, func(_, peer *Conn) { peer.Close() }, true, true},
		"closed, for both":            {unix.POLLRDHUP, func(_, peer *Conn) { peer.Close() }, true, true},
		"sends no more":               {unix.POLLRDHUP, func(_, peer *Conn) { _ = peer.CloseWrite() }, true, true},
		"sends no more, but reads":    {0, func(_, peer *Conn) { _ = peer.CloseWrite() }, false, true},
		"this end was closed":         {0, func(ours, _ *Conn) { ours.Close() }, true, false},
		"is there":                    {unix.POLLRDHUP, func(_, _ *Conn) {}, false, true},
		"is there, and reads no more": {0, func(_, peer *Conn) { _ = peer.CloseRead() }, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			ours, peer := connected(t)
			require.NoError(t, peer.Send(Encode(Header{Type: TMoved, Tag: 7}, &Moved{})))
			synctest.Test(t, func(t *testing.T) {
				var told atomic.Int32
				w := NewWatch(ours.UnixConn, c.events, func() { told.Add(1) })
				w.Begin()
				time.Sleep(3 * WatchEvery)
				require.Zero(t, told.Load(), "it has not gone")
				c.leave(ours, peer)
				time.Sleep(WatchEvery)
				synctest.Wait()
				if c.is {
					require.EqualValues(t, 1, told.Load())
				}
				time.Sleep(3 * WatchEvery)
				w.End()
				if c.is {
					require.EqualValues(t, 1, told.Load())
				} else {
					require.Zero(t, told.Load())
				}
				time.Sleep(3 * WatchEvery)
				synctest.Wait()
				require.False(t, w.on.Load(), "a connection that is silent has no timer")
			})
			if c.was {
				h, _, _, err := ours.Receive()
				require.NoError(t, err)
				require.EqualValues(t, 7, h.Tag)
			}
		})
	}
}

// TestWatchShort: requests that are answered at once are not looked at, however many, and take no memory.
func TestWatchShort(t *testing.T) {
	ours, peer := connected(t)
	peer.Close()
	synctest.Test(t, func(t *testing.T) {
		var told atomic.Int32
		w := NewWatch(ours.UnixConn, unix.POLLRDHUP, func() { told.Add(1) })
		for range 100 {
			w.Begin()
			time.Sleep(WatchEvery - 1)
			w.End()
			time.Sleep(time.Millisecond)
		}
		require.Zero(t, told.Load())
		require.Zero(t, testing.AllocsPerRun(100, func() { w.Begin(); w.End() }))
		for n := range 2 { // the next request of one that was told before, too
			w.Begin()
			time.Sleep(2 * WatchEvery)
			synctest.Wait()
			require.EqualValues(t, n+1, told.Load())
			w.End()
		}
		time.Sleep(3 * WatchEvery)
		synctest.Wait()
		require.False(t, w.on.Load())
	})
}
