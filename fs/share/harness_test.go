package share_test

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/sharetest"
	"github.com/lanefs/lanefs/fs/share/wire"
	lanefs "github.com/lanefs/lanefs/sdk/go"
)

// dial is a client that says what it likes.
func dial(t *testing.T, f *os.File) *wire.Conn {
	t.Helper()
	c, err := wire.Dial(socket(t, f))
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func socket(t *testing.T, f *os.File) string {
	t.Helper()
	var b [256]byte
	n, err := unix.Fgetxattr(int(f.Fd()), "system.lanefs.share", b[:])
	require.NoError(t, err)
	return string(b[:n])
}

func greet(t *testing.T, c *wire.Conn) {
	t.Helper()
	wire.CloseAll(hello(t, c))
}

// hello begins a connection. It returns what the client has of it: the notice board, and the event that says something is on it.
func hello(t *testing.T, c *wire.Conn) []int {
	t.Helper()
	var r wire.HelloReply
	rights, err := c.Call(wire.THello, 1, &wire.Hello{Magic: wire.Magic, Least: 1, Most: 9}, &r, 2)
	require.NoError(t, err)
	return rights
}

// works is a client that does everything right.
func works(t *testing.T, f *os.File, want []byte) {
	t.Helper()
	s, err := lanefs.Connect(f)
	require.NoError(t, err)
	defer s.Close()
	b, err := s.Map(f, 0, 0)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, b.Bytes()))
	require.NoError(t, b.Close())
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(list)
}

// settled waits until the server has no connections but those of the test.
func settled(t *testing.T, m *sharetest.Mount, conns int) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); m.Connections() != conns; time.Sleep(5 * time.Millisecond) {
		require.True(t, time.Now().Before(end), "%d connections, want %d", m.Connections(), conns)
	}
}
