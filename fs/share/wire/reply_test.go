package wire

import (
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestWrongReplies: a reply to something else, or without its descriptors, is none.
func TestWrongReplies(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fds[1])
	f := os.NewFile(uintptr(fds[0]), "client")
	n, err := net.FileConn(f)
	require.NoError(t, err)
	f.Close()
	c := &Conn{UnixConn: n.(*net.UnixConn)}
	defer c.Close()
	for what, h := range map[string]Header{"type": {Type: TPin | Reply, Tag: 5}, "a request": {Type: TMap, Tag: 5}, "tag": {Type: TMap | Reply, Tag: 4}, "descriptors": {Type: TMap | Reply, Tag: 5}} {
		require.NoError(t, unix.Sendto(fds[1], Encode(h, &MapReply{}), 0, nil))
		_, err := c.Call(TMap, 5, &Map{}, &MapReply{}, 1)
		require.ErrorIs(t, err, ErrMalformed, what)
		if what != "descriptors" {
			require.ErrorContains(t, err, "a reply of type", what)
		}
	}
}
