package share_test

import (
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/share"
	"github.com/lanefs/lanefs/fs/share/sharetest"
	"github.com/lanefs/lanefs/fs/share/wire"
	lanefs "github.com/lanefs/lanefs/sdk/go"
)

// TestReleaseBeside: who releases what a request uses that the device does not answer waits for that, and the session's other callers do not.
func TestReleaseBeside(t *testing.T) {
	m := sharetest.New(t, 64*mib, 32*mib)
	f := m.Write("file", noise(2, 4*mib))
	for name, closing := range map[string]func(g *stage, b *lanefs.Buffer) error{
		"memory": func(g *stage, _ *lanefs.Buffer) error { return g.memory.Close() },
		"file":   func(g *stage, _ *lanefs.Buffer) error { return g.file.Close() },
		"ring":   func(g *stage, _ *lanefs.Buffer) error { return g.ring.Close() },
		"buffer": func(_ *stage, b *lanefs.Buffer) error { return b.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			s := connect(t, f)
			g := newStage(t, s, f, 4*mib)
			b, err := s.Alloc(f, mib)
			require.NoError(t, err)
			held, release := m.HoldFirst(blockdev.OpRead)
			t.Cleanup(release) // before the session's end, which waits for its calls
			hung := g.read(0, mib)
			if name == "buffer" {
				hung.Memory, hung.Buffer = nil, b
			}
			g.ring.Start(hung)
			held("a read")
			closed := make(chan error, 1)
			go func() { closed <- closing(g, b) }()
			time.Sleep(50 * time.Millisecond)
			within(t, "the session's other requests", func() { others(t, s, m) })
			select {
			case <-closed:
				require.Fail(t, "the request has not ended")
			default:
			}
			release()
			require.NoError(t, <-closed)
			if err := hung.Wait(); name != "ring" { // else it may not have been told
				require.NoError(t, err)
			}
			require.NoError(t, s.Close())
			settled(t, m, 0)
			require.Equal(t, share.Usage{UID: m.Share.Usage()[0].UID}, m.Share.Usage()[0])
		})
	}
}

// others does some of everything in a session.
func others(t *testing.T, s *lanefs.Session, m *sharetest.Mount) {
	t.Helper()
	f := m.Write("other", noise(3, mib))
	b, err := s.Map(f, 0, 0)
	require.NoError(t, err)
	require.NoError(t, b.Close())
	b, err = s.Alloc(f, mib)
	require.NoError(t, err)
	require.NoError(t, b.Close())
	g := newStage(t, s, f, mib)
	q := g.read(0, mib)
	require.NoError(t, g.ring.Do(q))
	require.NoError(t, g.memory.Close())
	require.NoError(t, g.ring.Close())
}

// TestReleaseBrief: a brief release is answered though a request uses the handle, which is no name any more.
func TestReleaseBrief(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	f := m.Write("file", noise(2, mib))
	c := dialRing(t, f, mib, 8)
	held, release := m.HoldFirst(blockdev.OpRead)
	read := wire.Submission{Op: wire.OpRead, File: c.file.Handle, Memory: c.memory.Handle, Len: mib}
	c.submit(t, read)
	held("the read")
	c.SetReadDeadline(time.Now().Add(patience))
	call := func(number uint32, flags wire.ReleaseFlags) error {
		_, err := c.Call(wire.TRelease, 4, &wire.Release{Handle: number, Flags: flags}, nil, 0)
		return err
	}
	require.NoError(t, call(c.memory.Handle, wire.ReleaseAsk), "nothing is under way")
	require.ErrorIs(t, call(c.memory.Handle, wire.ReleaseBrief), unix.EINPROGRESS)
	require.ErrorIs(t, call(c.memory.Handle, wire.ReleaseAsk), unix.EINPROGRESS)
	require.ErrorIs(t, call(c.memory.Handle, wire.ReleaseBrief), unix.EBADF, "it has no name")
	require.ErrorIs(t, call(c.memory.Handle, 0), unix.EBADF)
	c.submit(t, read)
	var done [2]wire.Completion
	within(t, "the answer to a request that names it", func() {
		for n := 0; n == 0; n, _ = c.rings.Reap(done[:]) {
			time.Sleep(time.Millisecond)
		}
	})
	require.EqualValues(t, -int64(unix.EBADF), done[0].Result)
	require.EqualValues(t, mib, m.Share.Usage()[0].Registered, "it is charged")
	release()
	require.Eventually(t, func() bool { return call(c.memory.Handle, wire.ReleaseAsk) == nil }, patience, time.Millisecond)
	require.EqualValues(t, 0, m.Share.Usage()[0].Registered)
	n, err := c.rings.Reap(done[:])
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.EqualValues(t, mib, done[0].Result)
}

// TestReleaseLimits: what is being released counts as the connection's.
func TestReleaseLimits(t *testing.T) {
	const rings = 8 // of one connection
	m := sharetest.New(t, 64*mib, 16*mib)
	f := m.Write("file", noise(2, mib))
	c := dialRing(t, f, mib, 8)
	var reads atomic.Int64
	_, release := m.Hold(func(q *blockdev.Request) bool { return q.Op == blockdev.OpRead && reads.Add(1) > 0 })
	c.submit(t, wire.Submission{Op: wire.OpRead, File: c.file.Handle, Memory: c.memory.Handle, Len: mib})
	require.Eventually(t, func() bool { return reads.Load() == 1 }, patience, time.Millisecond)
	_, err := c.Call(wire.TRelease, 4, &wire.Release{Handle: c.ring.Handle, Flags: wire.ReleaseBrief}, nil, 0)
	require.ErrorIs(t, err, unix.EINPROGRESS)
	for i := range rings {
		rights, err := c.Call(wire.TRing, 5, &wire.Ring{Entries: 8}, &wire.RingReply{}, 3)
		if i == rings-1 {
			require.ErrorIs(t, err, unix.EMFILE)
		} else {
			require.NoError(t, err)
		}
		wire.CloseAll(rights)
	}

	require.NoError(t, c.Close()) // what the ring's request uses stays until that has ended, and no longer
	has(t, m, with(conn, func(u *share.Usage) {
		u.Handles, u.Registered, u.Rings, u.Descriptors, u.Shared = 2, mib, 1, 4, int64(wire.RingsSize(8))
	}))
	release()
	settled(t, m, 0)
	has(t, m, share.Usage{})
}

// TestCloseHung: a program ends its session while the device does not answer one of its calls, which ends with that.
func TestCloseHung(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	f := m.Write("file", noise(2, mib))
	s := connect(t, f)
	held, release := m.HoldFirst(blockdev.OpRead)
	t.Cleanup(release) // before connect's
	called := make(chan error, 1)
	go func() {
		_, err := s.Map(f, 0, 0)
		called <- err
	}()
	held("the map's read")
	within(t, "the session's end", func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-called; !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	})
	require.ErrorIs(t, s.Close(), os.ErrClosed)
	release()
	settled(t, m, 0)
}
