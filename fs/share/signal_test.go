package share_test

import (
	"encoding/binary"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/sharetest"
	"github.com/lanefs/lanefs/fs/share/wire"
)

// patience is far more than anything here takes, and less than for ever.
const patience = 2 * time.Minute

// within fails the test if f does not return.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(patience):
		require.FailNow(t, "it hangs", what)
	}
}

// spoil does to a signal's descriptor what makes an eventfd's other side wait: its flags are cleared, and it is full.
func spoil(t *testing.T, fd int) {
	t.Helper()
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	require.NoError(t, err)
	full := binary.LittleEndian.AppendUint64(nil, 1<<64-2)
	for range 100 {
		if _, err := unix.Write(fd, full); err != nil { // a socket that takes nothing, or an eventfd that is full
			break
		}
	}
	_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags&^unix.O_NONBLOCK)
	require.NoError(t, err)
}

// TestSpoiledSignals: a client that makes its signals full, and waiting, holds up neither writers, nor others, nor the unmount.
func TestSpoiledSignals(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	data := make([]byte, mib)
	f := m.Write("file", data)
	c := dial(t, f)
	rights := hello(t, c)
	spoil(t, rights[1])
	var r wire.MapReply
	memory, err := c.Call(wire.TMap, 2, &wire.Map{}, &r, 1, int(f.Fd()))
	require.NoError(t, err)
	defer wire.CloseAll(append(rights, memory...))
	within(t, "writers of what the client has mapped", func() {
		for i := range 200 { // more signals than there is room for
			if _, err := f.WriteAt([]byte{byte(i)}, int64(i)); err != nil {
				t.Error(err)
			}
			data[i] = byte(i)
		}
	})
	within(t, "other clients", func() { works(t, f, data) })

	var file wire.OpenReply
	_, err = c.Call(wire.TOpen, 3, &wire.Open{}, &file, 0, int(f.Fd()))
	require.NoError(t, err)
	for range 4 { // the client makes the signals of these rings fail before, between and after requests
		var ring wire.RingReply
		ends, err := c.Call(wire.TRing, 4, &wire.Ring{Entries: 8}, &ring, 3)
		require.NoError(t, err)
		shared, err := wire.MapShared(ends[0], int(ring.Size), true)
		require.NoError(t, err)
		client, err := wire.NewRings(shared, ring.Entries)
		require.NoError(t, err)
		spoil(t, ends[1])
		spoil(t, ends[2])
		within(t, "the client's own ring", func() {
			for n := range 50 {
				if _, err := client.Submit([]wire.Submission{{Data: uint64(n), Op: wire.OpSync, File: file.Handle}}); err != nil {
					t.Error(err)
					return
				}
				client.ClientSleeps(true) // so that each completion is signalled
				if client.WakeDaemon() && n < 3 {
					// What RingDoorbell does would wait here, for the eventfd is full: the client empties it, and rings.
					var b [8]byte
					_, _ = unix.Preadv2(ends[1], [][]byte{b[:]}, -1, unix.RWF_NOWAIT)
					wire.RingDoorbell(ends[1])
				}
				if n >= 3 {
					break // the daemon sleeps and is not signalled
				}
				for {
					var got [8]wire.Completion
					k, err := client.Reap(got[:])
					if err != nil {
						t.Error(err)
						return
					}
					if k > 0 {
						break
					}
					time.Sleep(time.Millisecond)
				}
			}
		})
		shared.Close()
		wire.CloseAll(ends)
	}
	within(t, "the end of its rings", func() {
		c.Close()
		settled(t, m, 0)
	})
	within(t, "the unmount", func() {
		c, err := wire.Dial(socket(t, f)) // and one that is there while it ends
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		var hello wire.HelloReply
		rights, err := c.Call(wire.THello, 1, &wire.Hello{Magic: wire.Magic, Least: 1, Most: 1}, &hello, 2)
		if err != nil {
			t.Error(err)
			return
		}
		spoil(t, rights[1])
		wire.CloseAll(rights)
		f.Close()
		m.Close()
	})
	_, err = os.Stat(m.Path("file"))
	require.ErrorIs(t, err, os.ErrNotExist, "it is unmounted")
}

func itoa(n int) string { return strconv.Itoa(n) }
