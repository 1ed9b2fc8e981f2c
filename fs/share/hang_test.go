package share_test

import (
	"bytes"
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

// TestHungRead: while the device does not answer one read, small or large, a ring's other requests and the connection's go on. The small one is the ring's first,
// which the leader carries out by itself.
func TestHungRead(t *testing.T) {
	for _, n := range []int64{4096, mib} {
		t.Run(itoa(int(n)), func(t *testing.T) { hungRead(t, n) })
	}
}

func hungRead(t *testing.T, n int64) {
	m := sharetest.New(t, 64*mib, 32*mib)
	data := noise(2, 4*mib)
	f := m.Write("file", data)
	s := connect(t, f)
	g := newStage(t, s, f, 4*mib)
	held, release := m.HoldFirst(blockdev.OpRead)
	hung := g.read(0, n)
	g.ring.Start(hung)
	held("the first read")
	within(t, "the ring's other requests", func() {
		for i := int64(1); i < 200; i++ { // more than the ring has room for, and more batches than it has workers
			q := g.read(i*8192, 4096)
			q.MemOff = i * 8192
			if err := g.ring.Do(q); err != nil {
				t.Error(err)
				return
			}
			if q.N != 4096 || !bytes.Equal(data[q.Off:q.Off+4096], g.bytes[q.MemOff:q.MemOff+4096]) {
				t.Error("other bytes")
			}
		}
	})
	within(t, "the connection's other requests", func() {
		b, err := s.Alloc(f, mib)
		if err != nil {
			t.Error(err)
			return
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	release()
	require.NoError(t, hung.Wait())
	require.Equal(t, n, hung.N)
	require.True(t, bytes.Equal(data[:n], g.bytes[:n]))
}

// TestHungDies: what a client had is free soon after its end, though the device does not answer one of its reads: all but what that one uses.
func TestHungDies(t *testing.T) {
	m := sharetest.New(t, 64*mib, 32*mib)
	f := m.Write("file", noise(2, mib))
	s := connect(t, f)
	g := newStage(t, s, f, mib)
	own, err := s.Alloc(f, 4*mib)
	require.NoError(t, err)
	_, err = s.Alloc(f, 20*mib)
	require.NoError(t, err)
	_, err = s.Map(f, 0, 0)
	require.NoError(t, err)
	_, err = s.NewRing(8)
	require.NoError(t, err)
	held, release := m.HoldFirst(blockdev.OpRead)
	g.ring.Start(g.read(0, 4096), &lanefs.Request{Op: lanefs.OpRead, File: g.file, Buffer: own, Len: 4096})
	held("the first read")
	require.NoError(t, s.Close())
	var has share.Usage
	for end := time.Now().Add(patience); has.Handles != 3; time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(end), "it has %+v", has)
		has = m.Share.Usage()[0]
	}
	require.EqualValues(t, 4*mib, has.Held)
	require.EqualValues(t, mib, has.Registered)

	release()
	settled(t, m, 0)
	require.Equal(t, share.Usage{UID: has.UID}, m.Share.Usage()[0])
}

// TestReleaseWaits: when the daemon says that it has released memory, a request that names it has ended.
func TestReleaseWaits(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	f := m.Write("file", noise(2, mib))
	c := dialRing(t, f, mib, 8)
	held, release := m.HoldFirst(blockdev.OpRead)
	c.submit(t, wire.Submission{Op: wire.OpRead, File: c.file.Handle, Memory: c.memory.Handle, Len: mib})
	held("the read")
	defer time.AfterFunc(50*time.Millisecond, release).Stop()
	c.SetReadDeadline(time.Now().Add(patience))
	_, err := c.Call(wire.TRelease, 4, &wire.Release{Handle: c.memory.Handle}, nil, 0)
	require.NoError(t, err)
	var done [2]wire.Completion
	n, err := c.rings.Reap(done[:])
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.EqualValues(t, mib, done[0].Result)
	c.submit(t, wire.Submission{Op: wire.OpRead, File: c.file.Handle, Memory: c.memory.Handle, Len: mib})
	within(t, "the answer", func() {
		for n = 0; n == 0; n, _ = c.rings.Reap(done[:]) {
		}
	})
	require.EqualValues(t, -int64(unix.EBADF), done[0].Result)
}

// TestGreedy: a client with all the rings that it may have, none of whose requests the device answers, has a quarter of the workers beyond each ring's first; another
// client's requests, one of which the device does not answer either, go on.
func TestGreedy(t *testing.T) {
	const rings, most, small = 8, 512 / 4, 4096
	m := sharetest.New(t, 64*mib, 32*mib)
	data := noise(2, 4*mib)
	f := m.Write("file", data)
	var reads atomic.Int64
	held, release := m.Hold(func(q *blockdev.Request) bool {
		return q.Op == blockdev.OpRead && q.Length() != small && reads.Add(1) > 0
	})
	greedy := connect(t, f)
	for range rings {
		g := newStageOf(t, greedy, f, 4*mib, 128)
		for range 128 {
			g.ring.Start(g.read(0, 4*mib))
		}
	}
	<-held
	require.Eventually(t, func() bool { return reads.Load() >= most }, patience, time.Millisecond)
	g := newStage(t, connect(t, f), f, 4*mib)
	hung := g.read(0, 4*mib)
	g.ring.Start(hung)
	within(t, "another client's requests", func() {
		var all []*lanefs.Request
		for i := range int64(64) {
			all = append(all, g.read(i*8192, small))
		}
		if err := g.ring.Do(all...); err != nil {
			t.Error(err)
		}
	})
	require.LessOrEqual(t, reads.Load(), int64(most+2*rings+1), "its places, each ring's first worker and leader, and the other client's")
	release()
	require.NoError(t, hung.Wait())
}
