package share_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/sharetest"
	"github.com/lanefs/lanefs/fs/share/wire"
	lanefs "github.com/lanefs/lanefs/sdk/go"
)

// TestConnections: of thousands of connections only so many are served at once; the others get an error.
func TestConnections(t *testing.T) {
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	if limit.Cur < 8192 {
		t.Skipf("needs 8192 descriptors, the limit is %d", limit.Cur)
	}
	m := sharetest.New(t, 64*mib, 16*mib)
	f := m.Write("file", []byte("content"))
	path := socket(t, f)
	before := descriptors(t)
	var open []*wire.Conn
	for range 1024 {
		c := dial(t, f)
		greet(t, c)
		open = append(open, c)
	}
	for range 200 { // more than are refused at once
		_, err := lanefs.Connect(f)
		require.ErrorIs(t, err, unix.EBUSY)
		require.ErrorContains(t, err, "too many connections", "one connection too many")
	}
	for _, c := range open {
		c.Close()
	}
	settled(t, m, 0)
	open = nil
	busy := 0
	for range 3000 {
		c, err := wire.Dial(path)
		if err != nil {
			require.ErrorIs(t, err, unix.EAGAIN) // the backlog is full
			time.Sleep(time.Millisecond)
			continue
		}
		if len(open) >= 1000 && len(open)%100 == 0 || len(open) < 5 {
			c.SetReadDeadline(time.Now().Add(time.Minute))
			var r wire.HelloReply
			rights, err := c.Call(wire.THello, 1, &wire.Hello{Magic: wire.Magic, Least: 1, Most: 1}, &r, 2)
			wire.CloseAll(rights)
			if err != nil {
				busy++
			}
		}
		open = append(open, c)
	}
	require.NotZero(t, busy, "there is a limit")
	for _, c := range open {
		c.Close()
	}
	settled(t, m, 0)
	works(t, f, []byte("content"))
	settled(t, m, 0)
	require.LessOrEqual(t, descriptors(t), before+slack, "descriptors leak")
}

// TestSlowReader: a client that reads no replies holds up neither writers nor others.
func TestSlowReader(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	f := m.Write("file", make([]byte, mib))
	slow := dial(t, f)
	greet(t, slow)
	var r wire.MapReply
	rights, err := slow.Call(wire.TMap, 2, &wire.Map{}, &r, 1, int(f.Fd()))
	require.NoError(t, err)
	wire.CloseAll(rights)
	slow.SetWriteDeadline(time.Now().Add(2 * time.Second))
	sent := 0
	for ; sent < 100000; sent++ {
		if slow.Send(wire.Encode(wire.Header{Type: wire.TRelease}, &wire.Release{Handle: 999})) != nil {
			break // both ways are full
		}
	}
	require.Less(t, sent, 100000)
	for i := range 200 {
		_, err := f.WriteAt([]byte{byte(i)}, int64(i))
		require.NoError(t, err)
	}
	got, err := os.ReadFile(m.Path("file"))
	require.NoError(t, err)
	works(t, f, got)
	slow.Close()
	settled(t, m, 0)
}

// TestUnmountUnderFire: the mount goes away while clients are at work, and leaves nothing.
func TestUnmountUnderFire(t *testing.T) {
	m := sharetest.New(t, 128*mib, 32*mib)
	names := []string{"a", "b", "c"}
	for i, n := range names {
		require.NoError(t, os.WriteFile(m.Path(n), bytes.Repeat([]byte{byte(i)}, 2*mib), 0o644))
	}
	f, err := os.Open(m.Path("a"))
	require.NoError(t, err)
	path := socket(t, f)
	f.Close()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				c, err := wire.Dial(path)
				if err != nil {
					return
				}
				var r wire.HelloReply
				rights, err := c.Call(wire.THello, 1, &wire.Hello{Magic: wire.Magic, Least: 1, Most: 1}, &r, 2)
				wire.CloseAll(rights)
				if err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, io.EOF) && !errors.Is(err, unix.ESHUTDOWN) && !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.EPIPE) {
					t.Error(err)
				}
				c.Close()
			}
		})
	}
	held, err := os.Open(m.Path("b"))
	require.NoError(t, err)
	s := connect(t, held)
	b, err := s.Map(held, 0, 0)
	require.NoError(t, err)
	r, err := s.NewRing(8)
	require.NoError(t, err)
	rf, err := s.Open(held)
	require.NoError(t, err)
	held.Close()
	require.NoError(t, r.Do(&lanefs.Request{Op: lanefs.OpSync, File: rf}))
	m.Close()
	require.NoError(t, s.Wait(time.Minute), "clients hear of it")
	require.False(t, b.Current(), "the file is not tracked any more")
	require.ErrorIs(t, r.Do(&lanefs.Request{Op: lanefs.OpSync, File: rf}), lanefs.ErrGone)
	require.Error(t, r.Close())
	close(stop)
	wg.Wait()
	require.True(t, bytes.Equal(bytes.Repeat([]byte{1}, 2*mib), b.Bytes()), "memory that is mapped stays")
	require.Error(t, b.Close(), "the daemon has gone")
	require.NoError(t, s.Close())
	_, err = os.Stat(filepath.Join(filepath.Dir(path), filepath.Base(path)))
	require.ErrorIs(t, err, os.ErrNotExist, "the socket has gone")
}
