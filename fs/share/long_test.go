package share_test

import (
	"io"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/share/sharetest"
	"github.com/lanefs/lanefs/fs/share/wire"
)

const long = 2 << 30 // bytes: twice what is read at once where there are many CPUs

// longTransfer has a client that reads n bytes into memory, or writes them to an empty file. It returns what the client has of its connection. Nothing of the transfer is done until
// release is called, however long that takes, for each part of what is read has a block that is held back.
func longTransfer(t *testing.T, m *sharetest.Mount, op wire.Op, n int64) (f *os.File, c *ringClient, release func()) {
	device := blockdev.OpWrite
	f = m.Write("file", nil)
	if op == wire.OpRead {
		const part = 4 * mib // of which those that are read at once are a multiple
		device = blockdev.OpRead
		for at := int64(0); at < n; at += part {
			_, err := f.WriteAt(make([]byte, 4096), at)
			require.NoError(t, err)
		}
		require.NoError(t, f.Truncate(n))
	}
	c = dialRing(t, f, n, 64)
	held, release := m.Hold(func(q *blockdev.Request) bool { return q.Op == device && (op == wire.OpRead || q.Length() >= mib) })
	c.submit(t, wire.Submission{Op: op, File: c.file.Handle, Memory: c.memory.Handle, Len: uint64(n)})
	<-held
	return f, c, release
}

// notAll says that the daemon has not moved all bytes to the memory, nor says so.
func notAll(t *testing.T, c *ringClient) {
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(c.memfd, &st))
	require.Less(t, st.Blocks*512, int64(long), "bytes that were moved all the same")
	ended(t, c)
}

// ended says that a transfer has ended early.
func ended(t *testing.T, c *ringClient) {
	t.Helper()
	var done [2]wire.Completion
	n, err := c.rings.Reap(done[:])
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.EqualValues(t, -int64(unix.ESHUTDOWN), done[0].Result)
}

// TestLongTransfers: what a client has asked for, however much, ends with the mount, and not the other way round.
func TestLongTransfers(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	f, c, release := longTransfer(t, m, wire.OpRead, long)
	f.Close()
	done := make(chan struct{})
	go func() { defer close(done); m.Close() }()
	var err error
	within(t, "the connection's end", func() { _, _, _, err = c.Receive() })
	require.ErrorIs(t, err, io.EOF)
	_, err = os.Stat(m.Path("file"))
	require.ErrorIs(t, err, os.ErrNotExist, "the mount ends before its share")
	release()
	within(t, "the unmount", func() { <-done })
	notAll(t, c)
}

// TestLongTransferOfTheDead: what a client has asked for ends with its connection, too.
func TestLongTransferOfTheDead(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	_, c, release := longTransfer(t, m, wire.OpRead, long)
	c.Close()
	within(t, "the signal of the end", func() {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(c.rights[1]), Events: unix.POLLIN}}, -1)
		require.NoError(t, err)
	})
	release()
	settled(t, m, 0)
	notAll(t, c)
}

// TestLongWriteOfTheDead: a large write ends with its connection, after the piece that is being written.
func TestLongWriteOfTheDead(t *testing.T) {
	const piece = 64 * mib
	m := sharetest.New(t, 256*mib, 16*mib)
	f, c, release := longTransfer(t, m, wire.OpWrite, 2*piece)
	c.Close()
	within(t, "the signal of the end", func() {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(c.rights[1]), Events: unix.POLLIN}}, -1)
		require.NoError(t, err)
	})
	release()
	settled(t, m, 0)
	ended(t, c)
	st, err := f.Stat()
	require.NoError(t, err)
	require.EqualValues(t, piece, st.Size())
}

// TestProgress: of a range that is read it is told how far that is.
func TestProgress(t *testing.T) {
	const n, part = 13 * mib, 4 * mib
	m := sharetest.New(t, 64*mib, 32*mib)
	f := m.Write("file", noise(1, n))
	s := connect(t, f)
	var one atomic.Bool
	held, release := m.Hold(func(q *blockdev.Request) bool {
		return q.Op == blockdev.OpRead && q.Length() >= mib/4 && one.CompareAndSwap(false, true)
	})
	mapped := make(chan error)
	go func() { _, err := s.Map(f, 0, 0); mapped <- err }()
	<-held
	read := func() int64 { return m.Pool.Stats().Residents[0].Read }
	for end := time.Now().Add(time.Minute); read() < n-2*part; time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(end), "%d bytes are read", read())
	}
	require.Less(t, read(), int64(n))
	release()
	require.NoError(t, <-mapped)
	require.EqualValues(t, n, read())
}
