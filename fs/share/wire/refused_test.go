package wire_test

import (
	"net"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/wire"
)

// TestRefusedUnread: a client that is refused before its Hello was read gets the reason, although sending the Hello fails.
func TestRefusedUnread(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	require.NoError(t, err)
	defer l.Close()
	c, err := wire.Dial(path)
	require.NoError(t, err)
	defer c.Close()
	peer, err := l.AcceptUnix()
	require.NoError(t, err)
	require.NoError(t, (&wire.Conn{UnixConn: peer}).Send(wire.Encode(wire.Header{Type: wire.THello | wire.Reply, Status: int32(unix.EBUSY)}, "too many")))
	require.NoError(t, peer.Close())
	_, err = c.Call(wire.THello, 1, &wire.Hello{Magic: wire.Magic, Least: wire.Version, Most: wire.Version}, &wire.HelloReply{}, 2)
	require.ErrorContains(t, err, "too many")
	require.ErrorIs(t, err, unix.EBUSY)
	_, err = c.Call(wire.TPin, 2, nil, nil, 0)
	require.ErrorIs(t, err, unix.EPIPE)
}
