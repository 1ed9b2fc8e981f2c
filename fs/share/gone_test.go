package share_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/share"
	"github.com/lanefs/lanefs/fs/share/sharetest"
	"github.com/lanefs/lanefs/fs/share/wire"
)

// A client that goes while the device does not answer its request, or one that it waits for, keeps what that request uses, and nothing else.

// ask sends a request, for whose reply nobody waits.
func ask(t *testing.T, c *wire.Conn, kind wire.Type, request any, rights ...int) {
	t.Helper()
	require.NoError(t, c.Send(wire.Encode(wire.Header{Type: kind, Tag: 9}, request), rights...))
}

// has waits until the users' programs have so much.
func has(t *testing.T, m *sharetest.Mount, want share.Usage) {
	t.Helper()
	var now share.Usage
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		now = m.Share.Usage()[0]
		want.UID = now.UID
		if now == want {
			return
		}
	}
	require.Equal(t, want, now)
}

// conn is what one connection without handles has after its client has gone: its socket, notice board and signal are free.
var conn = share.Usage{Connections: 1}

func with(u share.Usage, change func(u *share.Usage)) share.Usage {
	change(&u)
	return u
}

// rich is a client with memory of the pool, memory of its own, a file and two rings.
func rich(t *testing.T, m *sharetest.Mount) (c *ringClient, own wire.MapReply) {
	t.Helper()
	f := m.Open("file", 2)
	c = dialRing(t, f, mib, 8)
	for _, q := range []*wire.Map{{Flags: wire.MapPrivate | wire.MapEmpty, Len: 4 * mib}, {Flags: wire.MapPrivate | wire.MapEmpty, Len: 2 * mib}} {
		rights, err := c.Call(wire.TMap, 4, q, &own, 1, int(f.Fd()))
		require.NoError(t, err)
		wire.CloseAll(rights)
	}
	rights, err := c.Call(wire.TRing, 5, &wire.Ring{Entries: 8}, &wire.RingReply{}, 3)
	require.NoError(t, err)
	wire.CloseAll(rights)
	return c, own
}

// gateHas is what the gate has open of the mount at dir.
func gateHas(t *testing.T, dir string) (all []string) {
	t.Helper()
	list, err := filepath.Glob("/proc/self/task/*/children")
	require.NoError(t, err)
	for _, name := range list {
		b, _ := os.ReadFile(name) // a thread may have ended
		for _, pid := range strings.Fields(string(b)) {
			fds, _ := filepath.Glob("/proc/" + pid + "/fd/*")
			for _, fd := range fds {
				if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, dir+"/") {
					all = append(all, to)
				}
			}
		}
	}
	return all
}

func TestGone(t *testing.T) {
	for name, c := range map[string]struct {
		op   blockdev.Op
		ask  func(t *testing.T, c *ringClient, own wire.MapReply, file int)
		left func(u *share.Usage) // of the connection, while the request is under way
	}{
		"a map": {blockdev.OpRead,
			func(t *testing.T, c *ringClient, _ wire.MapReply, file int) {
				ask(t, c.Conn, wire.TMap, &wire.Map{}, file)
			},
			func(u *share.Usage) { u.Handles, u.Held = 1, 2*mib }},
		"a copy": {blockdev.OpRead,
			func(t *testing.T, c *ringClient, _ wire.MapReply, file int) {
				ask(t, c.Conn, wire.TMap, &wire.Map{Flags: wire.MapPrivate}, file)
			},
			func(u *share.Usage) { u.Handles, u.Held = 1, 2*mib }},
		"a commit that writes": {blockdev.OpWrite,
			func(t *testing.T, c *ringClient, own wire.MapReply, file int) {
				ask(t, c.Conn, wire.TCommit, &wire.Commit{Handle: own.Handle, Len: mib}, file)
			},
			func(u *share.Usage) { u.Handles, u.Held, u.Descriptors = 1, 2*mib, u.Descriptors+1 }},
		"a commit that is made durable": {blockdev.OpFlush,
			func(t *testing.T, c *ringClient, own wire.MapReply, file int) {
				ask(t, c.Conn, wire.TCommit, &wire.Commit{Handle: own.Handle, Len: mib}, file)
			},
			func(*share.Usage) {}},
		"a release, behind a request of a ring": {blockdev.OpRead,
			func(t *testing.T, c *ringClient, _ wire.MapReply, _ int) {
				c.submit(t, wire.Submission{Op: wire.OpRead, File: c.file.Handle, Memory: c.memory.Handle, Len: mib}) // and then the release
			},
			func(u *share.Usage) { // its memory, its file and the ring
				u.Handles, u.Registered, u.Rings, u.Descriptors, u.Shared = 2, mib, 1, u.Descriptors+4, u.Shared+int64(wire.RingsSize(8))
			}},
	} {
		t.Run(name, func(t *testing.T) {
			m := sharetest.New(t, 64*mib, 16*mib)
			m.Write("file", noise(2, 2*mib))
			f := m.Open("file", 2)
			client, own := rich(t, m)
			held, release := m.HoldFirst(c.op)
			c.ask(t, client, own, int(f.Fd()))
			held("the request's")
			time.Sleep(4 * wire.WatchEvery)
			if strings.HasPrefix(name, "a release") {
				ask(t, client.Conn, wire.TRelease, &wire.Release{Handle: client.memory.Handle})
				time.Sleep(4 * wire.WatchEvery)
			} else {
				require.Len(t, gateHas(t, m.Dir), 1, "it keeps the client's file until the reply")
			}
			all := m.Share.Usage()[0]
			require.EqualValues(t, 2, all.Rings, "the client is there")
			require.GreaterOrEqual(t, all.Held, int64(6*mib))
			require.NoError(t, client.Close())
			left := with(conn, c.left)
			has(t, m, left)
			require.Equal(t, left.Held, m.Pool.Stats().Used)
			require.Eventually(t, func() bool { return len(gateHas(t, m.Dir)) == 0 }, patience, time.Millisecond, "the gate has the file, so the mount is busy")

			release()
			settled(t, m, 0)
			has(t, m, share.Usage{})
		})
	}
}

// TestGoneBehindOthers: a client that goes while it waits for what another client's request has keeps nothing at all.
func TestGoneBehindOthers(t *testing.T) {
	t.Run("a range that is read", func(t *testing.T) {
		m := sharetest.New(t, 64*mib, 16*mib)
		m.Write("file", noise(2, 2*mib))
		f := m.Open("file", 2)
		first := dial(t, f)
		greet(t, first)
		held, release := m.HoldFirst(blockdev.OpRead)
		ask(t, first, wire.TMap, &wire.Map{}, int(f.Fd()))
		held("the first client's")
		alone := m.Share.Usage()[0]
		client, _ := rich(t, m)
		ask(t, client.Conn, wire.TMap, &wire.Map{}, int(f.Fd()))
		require.Eventually(t, func() bool { return m.Pool.Stats().Shared == 1 }, patience, time.Millisecond, "it waits for the first client's")
		require.NoError(t, client.Close())
		has(t, m, alone)
		release()
		h, _, rights, err := first.Receive()
		require.NoError(t, err)
		require.Zero(t, h.Status, "the first one has what it wants")
		wire.CloseAll(rights)
	})
	t.Run("parts of the stage", func(t *testing.T) {
		const parts, size = 12, 32 * mib // of 16: another user's are left
		m := sharetest.NewUnreached(t, 128*mib, 160*mib)
		m.Write("file", noise(2, size))
		f := m.Open("file", 2)
		var reads atomic.Int64
		_, release := m.Hold(func(q *blockdev.Request) bool { return q.Op == blockdev.OpRead && reads.Add(1) > 0 })
		var first [3]*wire.Conn // each reads four parts at once, at least
		for i := range first {
			first[i] = dial(t, f)
			greet(t, first[i])
			ask(t, first[i], wire.TMap, &wire.Map{Flags: wire.MapPrivate}, int(f.Fd()))
		}
		require.Eventually(t, func() bool { return reads.Load() == parts }, patience, time.Millisecond, "all parts that the user may have are in use")
		alone := m.Share.Usage()[0]
		client, _ := rich(t, m)
		ask(t, client.Conn, wire.TMap, &wire.Map{Flags: wire.MapPrivate}, int(f.Fd())) // more than a part
		other, _ := rich(t, m)
		other.submit(t, wire.Submission{Op: wire.OpRead, File: other.file.Handle, Memory: other.memory.Handle, Len: mib})
		time.Sleep(4 * wire.WatchEvery)
		require.NoError(t, client.Close())
		require.NoError(t, other.Close())
		has(t, m, alone)
		require.EqualValues(t, parts, reads.Load())
		release()
		for _, c := range first {
			h, _, rights, err := c.Receive()
			require.NoError(t, err)
			require.Zero(t, h.Status)
			wire.CloseAll(rights)
		}
	})
}

// TestHalfGone: a client that sends no more gets the reply to what it has sent, however long that takes.
func TestHalfGone(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	m.Write("file", noise(2, 2*mib))
	f := m.Open("file", 2)
	c := dial(t, f)
	greet(t, c)
	held, release := m.HoldFirst(blockdev.OpRead)
	ask(t, c, wire.TMap, &wire.Map{}, int(f.Fd()))
	held("the map's")
	require.NoError(t, c.CloseWrite())
	time.Sleep(4 * wire.WatchEvery)
	release()
	h, _, rights, err := c.Receive()
	require.NoError(t, err)
	require.Zero(t, h.Status)
	wire.CloseAll(rights)
	settled(t, m, 0)
}

// TestGoneBeforeLock: what a client that has gone was about to write when another client's write had the file is not written any more.
func TestGoneBeforeLock(t *testing.T) {
	for name, write := range map[string]func(t *testing.T, c *ringClient, own wire.MapReply, file int){
		"a commit": func(t *testing.T, c *ringClient, own wire.MapReply, file int) {
			ask(t, c.Conn, wire.TCommit, &wire.Commit{Handle: own.Handle, Len: mib}, file)
		},
		"a commit of what is not whole blocks": func(t *testing.T, c *ringClient, own wire.MapReply, file int) {
			ask(t, c.Conn, wire.TCommit, &wire.Commit{Handle: own.Handle, FileOff: 5, Len: mib}, file)
		},
		"a ring's write": func(t *testing.T, c *ringClient, own wire.MapReply, _ int) {
			c.submit(t, wire.Submission{Op: wire.OpWrite, File: c.file.Handle, Memory: own.Handle, Len: mib})
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := sharetest.New(t, 64*mib, 32*mib)
			data := noise(2, 2*mib)
			m.Write("file", data)
			f := m.Open("file", 2)
			first, itsOwn := rich(t, m)
			client, own := rich(t, m)
			held, release := m.HoldFirst(blockdev.OpWrite)
			ask(t, first.Conn, wire.TCommit, &wire.Commit{Handle: itsOwn.Handle, FileOff: 4 * mib, Len: mib}, int(f.Fd())) // it allocates
			held("the first client's")
			write(t, client, own, int(f.Fd()))
			time.Sleep(4 * wire.WatchEvery)
			require.NoError(t, client.Close())
			require.Eventually(t, func() bool { return m.Share.Usage()[0].Registered == mib }, patience, time.Millisecond, "its end is seen")
			release()
			h, _, _, err := first.Receive()
			require.NoError(t, err)
			require.Zero(t, h.Status)
			settled(t, m, 1)
			got := make([]byte, 2*mib)
			_, err = f.ReadAt(got, 0)
			require.NoError(t, err)
			require.True(t, bytes.Equal(data, got), "it was written all the same")
		})
	}
}
