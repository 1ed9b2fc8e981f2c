package gate

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/wire"
)

func TestHead(t *testing.T) {
	rights := []Right{{Sort: Foreign, FD: -1}, {Sort: Own, FD: -1, Flags: unix.O_RDWR | unix.O_APPEND, Inode: 1 << 40, Mode: unix.S_IFREG | 0o644, Name: "/mnt/a"},
		{Sort: Memory, FD: 77}, {Sort: Own, FD: -1, Inode: 3}}
	b := append(encodeHead(rights), "message"...)
	got, message, err := decodeHead(b, []int{77})
	require.NoError(t, err)
	require.Equal(t, rights, got)
	require.Equal(t, "message", string(message))
	for _, fds := range [][]int{nil, {1, 2}} {
		_, _, err = decodeHead(b, fds)
		require.Error(t, err, "too few descriptors, or too many")
	}
	for n := range len(b) - len("message") {
		_, _, err = decodeHead(b[:n], []int{77})
		require.Error(t, err)
	}
	long := []Right{{Sort: Own, FD: -1, Name: strings.Repeat("x", 4096)}}
	got, _, err = decodeHead(encodeHead(long), nil)
	require.NoError(t, err)
	require.Len(t, got[0].Name, maxName)
	require.LessOrEqual(t, len(encodeHead(append(append(long, long...), append(long, append(long, long...)...)...))), maxHead)
}

// TestRightsWait: rightsWait finds descriptors in a socket's queue.
func TestRightsWait(t *testing.T) {
	for name, c := range map[string]struct {
		send func(c *wire.Conn) error
		want bool
	}{
		"nothing":      {func(*wire.Conn) error { return nil }, false},
		"messages":     {func(c *wire.Conn) error { return c.Send([]byte("abc")) }, false},
		"a descriptor": {func(c *wire.Conn) error { return c.Send([]byte("abc"), 0) }, true},
		"one behind messages": {func(c *wire.Conn) error {
			_ = c.Send([]byte("abc"))
			_ = c.Send([]byte("abc"))
			return c.Send([]byte("abc"), 0, 1)
		}, true},
		"one behind an empty one": {func(c *wire.Conn) error {
			raw, _ := c.SyscallConn()
			return errors.Join(raw.Control(func(fd uintptr) { _ = unix.Sendmsg(int(fd), nil, nil, nil, 0) }), c.Send([]byte("abc"), 0))
		}, true},
		"its end":          {func(c *wire.Conn) error { return c.Close() }, false},
		"one, and its end": {func(c *wire.Conn) error { _ = c.Send([]byte("abc"), 0); return c.Close() }, true},
	} {
		client, other, err := pair()
		require.NoError(t, err)
		require.NoError(t, c.send(client))
		f, err := net.FileConn(other)
		require.NoError(t, err)
		other.Close()
		require.Equal(t, c.want, rightsWait(f.(*net.UnixConn)), name)
		require.Error(t, client.Send([]byte("x"), 0), "%s: nothing comes afterwards", name)
		f.Close()
		client.Close()
	}
}
