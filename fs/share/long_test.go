package share_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/share/sharetest"
	"github.com/lanefs/lanefs/fs/share/wire"
	"github.com/lanefs/lanefs/gpu"
)

const long = 2 << 30 // bytes: a second's work, of which the first part is held back

// longRead has a client that reads into memory for long. It returns what the client has of its connection, when none of it has ended: the daemon waits for
// release.
func longRead(t *testing.T, m *sharetest.Mount) (f *os.File, c *wire.Conn, client *wire.Rings, event, memfd int, release func()) {
	f = m.Write("file", make([]byte, mib))
	require.NoError(t, f.Truncate(long))
	c = dial(t, f)
	rights := hello(t, c)
	t.Cleanup(func() { wire.CloseAll(rights) })
	memfd, err := unix.MemfdCreate("m", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(memfd) })
	require.NoError(t, unix.Ftruncate(memfd, long))
	var file wire.OpenReply
	_, err = c.Call(wire.TOpen, 1, &wire.Open{}, &file, 0, int(f.Fd()))
	require.NoError(t, err)
	var mem wire.RegisterReply
	_, err = c.Call(wire.TRegister, 2, &wire.Register{Kind: uint32(gpu.ExportMemFD), Size: long}, &mem, 0, memfd)
	require.NoError(t, err)
	var ring wire.RingReply
	ends, err := c.Call(wire.TRing, 3, &wire.Ring{Entries: 64}, &ring, 3)
	require.NoError(t, err)
	t.Cleanup(func() { wire.CloseAll(ends) })
	shared, err := wire.MapShared(ends[0], int(ring.Size), true)
	require.NoError(t, err)
	t.Cleanup(func() { shared.Close() })
	client, err = wire.NewRings(shared, ring.Entries)
	require.NoError(t, err)
	// The first block that is read is held back until all are taken, so that none has ended.
	held, release := m.Hold(func(q *blockdev.Request) bool { return q.Op == blockdev.OpRead })
	_, err = client.Submit([]wire.Submission{{Op: wire.OpRead, File: file.Handle, Memory: mem.Handle, Len: long}})
	require.NoError(t, err)
	wire.RingDoorbell(ends[1])
	<-held
	return f, c, client, rights[1], memfd, release
}

// notAll says that the daemon has not moved all bytes to the memory, nor says so.
func notAll(t *testing.T, client *wire.Rings, memfd int) {
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(memfd, &st))
	require.Less(t, st.Blocks*512, int64(long), "bytes that were moved all the same")
	var done [2]wire.Completion
	n, err := client.Reap(done[:])
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.EqualValues(t, -int64(unix.ESHUTDOWN), done[0].Result)
}

// TestLongTransfers: what a client has asked for, however much, ends with the mount, and not the other way round.
func TestLongTransfers(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	f, _, client, _, memfd, release := longRead(t, m)
	f.Close()
	done := make(chan struct{})
	go func() { defer close(done); m.Close() }()
	within(t, "the mount's end", func() {
		for { // the mount ends before its share
			if _, err := os.Stat(m.Path("file")); err != nil {
				return
			}
		}
	})
	release()
	within(t, "the unmount", func() { <-done })
	notAll(t, client, memfd)
}

// TestLongTransferOfTheDead: what a client has asked for ends with its connection, too.
func TestLongTransferOfTheDead(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	_, c, client, event, memfd, release := longRead(t, m)
	c.Close()
	within(t, "the signal of the end", func() {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(event), Events: unix.POLLIN}}, -1)
		require.NoError(t, err)
	})
	release()
	settled(t, m, 0)
	notAll(t, client, memfd)
}
