package main

import (
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestControlWithoutDescriptors: a daemon that has no descriptor for a connection to its control socket says so once, not ten times a second for as long
// as that lasts, and takes the connection when it has one.
func TestControlWithoutDescriptors(t *testing.T) {
	const says = "the control socket does not accept a connection"
	p := newPlace(t)
	mnt := p.mkdir("mnt")
	p.ok("mount", "--gpu", "host", p.image("image", 64), mnt)
	r, err := p.stat(mnt)
	require.NoError(t, err)
	times := func() int {
		b, err := os.ReadFile(r.Log)
		require.NoError(t, err)
		return strings.Count(string(b), says)
	}
	var had unix.Rlimit
	require.NoError(t, unix.Prlimit(r.PID, unix.RLIMIT_NOFILE, nil, &had))
	require.NoError(t, unix.Prlimit(r.PID, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: had.Max}, nil))
	defer unix.Prlimit(r.PID, unix.RLIMIT_NOFILE, &had, nil)
	conn, err := net.Dial("unix", strings.TrimSuffix(r.Log, ".log")+".sock")
	require.NoError(t, err)
	defer conn.Close()
	p.eventually("the daemon says so", func() bool { return times() > 0 })
	time.Sleep(time.Second) // in which it tries again
	require.Equal(t, 1, times())
	require.NoError(t, unix.Prlimit(r.PID, unix.RLIMIT_NOFILE, &had, nil))
	_, err = p.stat(mnt)
	require.NoError(t, err)
	p.ok("umount", mnt)
}
