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
	"github.com/lanefs/lanefs/gpu"
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

// ringClient is a client with a file, memory and a ring, of which it can do with all what it likes.
type ringClient struct {
	*wire.Conn
	rights []int // of its Hello: the notice board, and its event
	file   wire.OpenReply
	memfd  int
	memory wire.RegisterReply
	ring   wire.RingReply
	ends   []int // of the ring: its memory, the doorbell, and the signal of completions
	rings  *wire.Rings
}

// dialRing is a ringClient with size bytes of memory, 0 for none.
func dialRing(t *testing.T, f *os.File, size int64, entries uint32) *ringClient {
	t.Helper()
	c := &ringClient{Conn: dial(t, f), memfd: -1}
	c.rights = hello(t, c.Conn)
	t.Cleanup(func() { wire.CloseAll(c.rights) })
	_, err := c.Call(wire.TOpen, 1, &wire.Open{}, &c.file, 0, int(f.Fd()))
	require.NoError(t, err)
	if size > 0 {
		c.memfd = newMemfd(t, size)
		_, err = c.Call(wire.TRegister, 2, &wire.Register{Kind: uint32(gpu.ExportMemFD), Size: uint64(size)}, &c.memory, 0, c.memfd)
		require.NoError(t, err)
	}
	c.ends, err = c.Call(wire.TRing, 3, &wire.Ring{Entries: entries}, &c.ring, 3)
	require.NoError(t, err)
	t.Cleanup(func() { wire.CloseAll(c.ends) })
	shared, err := wire.MapShared(c.ends[0], int(c.ring.Size), true)
	require.NoError(t, err)
	t.Cleanup(func() { shared.Close() })
	c.rings, err = wire.NewRings(shared, c.ring.Entries)
	require.NoError(t, err)
	return c
}

// submit submits, all at once, and signals.
func (c *ringClient) submit(t *testing.T, subs ...wire.Submission) {
	t.Helper()
	n, err := c.rings.Submit(subs)
	require.NoError(t, err)
	require.Equal(t, len(subs), n)
	wire.RingDoorbell(c.ends[1])
}

// newMemfd is memory of a program, of size bytes, until the test ends.
func newMemfd(t *testing.T, size int64) int {
	t.Helper()
	fd, err := unix.MemfdCreate("m", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	require.NoError(t, unix.Ftruncate(fd, size))
	return fd
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

// connect is a session until the test ends.
func connect(t *testing.T, f *os.File) *lanefs.Session {
	t.Helper()
	s, err := lanefs.Connect(f)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// works is a client that does everything right.
func works(t *testing.T, f *os.File, want []byte) {
	t.Helper()
	s := connect(t, f)
	b, err := s.Map(f, 0, 0)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, b.Bytes()))
	require.NoError(t, b.Close())
	require.NoError(t, s.Close())
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
