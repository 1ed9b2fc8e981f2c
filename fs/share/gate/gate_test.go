package gate

import (
	"log/slog"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/wire"
)

// arrive sends a client as the process does, and gives the client's end.
func arrive(t *testing.T, process *os.File) int {
	t.Helper()
	s, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(s[0]) })
	require.NoError(t, unix.SetsockoptTimeval(s[0], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 60}))
	require.NoError(t, unix.Sendmsg(int(process.Fd()), []byte{7, 0, 0, 0}, unix.UnixRights(s[1]), nil, 0))
	require.NoError(t, unix.Close(s[1]))
	return s[0]
}

// exhaust takes all descriptors of the process but so many, until the end of the test or until back is called.
func exhaust(t *testing.T, left int) (back func()) {
	t.Helper()
	var was unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 256, Max: was.Max}))
	var full []int
	ended := false
	back = func() {
		if !ended {
			wire.CloseAll(full)
			_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &was)
		}
		ended = true
	}
	t.Cleanup(back)
	for {
		fd, err := unix.FcntlInt(2, unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			require.Equal(t, unix.EMFILE, err)
			break
		}
		full = append(full, fd)
	}
	wire.CloseAll(full[:left])
	full = full[left:]
	return back
}

// ended says that a connection has ended.
func ended(t *testing.T, fd int) {
	t.Helper()
	n, err := unix.Read(fd, make([]byte, 1))
	require.NoError(t, err)
	require.Zero(t, n)
}

// TestTurnedAway: a client for whose socket the daemon has no descriptor, or none to make a connection of it, loses its connection. The next one is taken, by the
// same process.
func TestTurnedAway(t *testing.T) {
	control, process, err := pair()
	require.NoError(t, err)
	defer control.Close()
	defer process.Close()
	g := &Gate{log: slog.New(slog.DiscardHandler), closed: make(chan struct{}), control: control}
	for left := range 2 {
		client := arrive(t, process)
		back := exhaust(t, left)
		_, err := g.receive()
		back()
		require.ErrorIs(t, err, errTurnedAway, "%d left", left)
		ended(t, client)
	}

	client := arrive(t, process)
	back := exhaust(t, 0)
	taken := make(chan *Conn, 1)
	go func() {
		c, _ := g.Accept()
		taken <- c
	}()
	ended(t, client)
	back()
	client = arrive(t, process)
	c := <-taken
	require.NotNil(t, c)
	require.EqualValues(t, 7, c.UID)
	require.NoError(t, c.Close())
	ended(t, client)
}
