package share_test

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share"
	"github.com/lanefs/lanefs/fs/share/sharetest"
	"github.com/lanefs/lanefs/fs/share/wire"
)

// TestHello: the first request is a Hello of a version that the daemon speaks, and no later one is. Who was refused may try again.
func TestHello(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	f := m.Write("file", []byte("x"))
	c := dial(t, f)
	_, err := c.Call(wire.TMoved, 1, &wire.Moved{}, &wire.MovedReply{}, 0)
	require.ErrorIs(t, err, unix.EPROTO)
	require.ErrorContains(t, err, "first message")
	for _, bad := range []struct {
		hello wire.Hello
		errno unix.Errno
	}{
		{wire.Hello{Magic: wire.Magic, Least: wire.Version + 1, Most: wire.Version + 5}, unix.EPROTONOSUPPORT},
		{wire.Hello{Magic: wire.Magic, Least: 0, Most: wire.Version - 1}, unix.EPROTONOSUPPORT},
		{wire.Hello{Least: wire.Version, Most: wire.Version}, unix.EPROTO},
	} {
		_, err := c.Call(wire.THello, 1, &bad.hello, &wire.HelloReply{}, 2)
		require.ErrorIs(t, err, bad.errno)
	}
	var r wire.HelloReply
	rights, err := c.Call(wire.THello, 1, &wire.Hello{Magic: wire.Magic, Least: wire.Version, Most: wire.Version}, &r, 2)
	require.NoError(t, err)
	wire.CloseAll(rights)
	require.Equal(t, wire.HelloReply{Version: wire.Version, Runtime: wire.RuntimeHost, Kind: uint32(m.Pool.Kind()), Granule: uint64(m.Pool.Granule()),
		PoolSize: 16 * mib, Slots: wire.Slots, Device: r.Device, Name: r.Name}, r)
	_, err = c.Call(wire.THello, 1, &wire.Hello{Magic: wire.Magic, Least: wire.Version, Most: wire.Version}, &r, 2)
	require.ErrorIs(t, err, unix.EPROTO)
	require.ErrorContains(t, err, "first message")
	_, err = c.Call(wire.TMoved, 1, &wire.Moved{}, &wire.MovedReply{}, 0)
	require.NoError(t, err)
}

// TestSilent: a client that says no Hello is disconnected; one that has said it may be silent after that.
func TestSilent(t *testing.T) {
	share.SetHelloTimeout(t, time.Second)
	m := sharetest.New(t, 64*mib, 16*mib)
	f := m.Write("file", []byte("x"))
	var greeted *wire.Conn
	for {
		greeted = dial(t, f)
		var r wire.HelloReply
		rights, err := greeted.Call(wire.THello, 1, &wire.Hello{Magic: wire.Magic, Least: wire.Version, Most: wire.Version}, &r, 2)
		wire.CloseAll(rights)
		if err == nil { // within the second
			break
		}
	}
	silent := dial(t, f)
	silent.SetReadDeadline(time.Now().Add(2 * time.Minute))
	_, err := silent.Call(wire.TMoved, 1, &wire.Moved{}, &wire.MovedReply{}, 0)
	require.Error(t, err, "another request is none")
	_, _, _, err = silent.Receive()
	require.ErrorIs(t, err, io.EOF)
	_, err = greeted.Call(wire.TMoved, 1, &wire.Moved{}, &wire.MovedReply{}, 0)
	require.NoError(t, err)
}
