package share_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/share"
	"github.com/lanefs/lanefs/fs/share/sharetest"
	"github.com/lanefs/lanefs/fs/share/wire"
)

// Words of a ring, by their offset (docs/SPEC.md).
const (
	sqTail       = 0
	sqHead       = 64
	cqTail       = 128
	cqHead       = 192
	daemonSleeps = 256
)

// put submits without a signal, while the daemon sleeps: it takes nothing until something wakes it.
func (c *ringClient) put(t *testing.T, subs ...wire.Submission) {
	t.Helper()
	c.until(t, daemonSleeps, 1)
	n, err := c.rings.Submit(subs)
	require.NoError(t, err)
	require.Equal(t, len(subs), n)
}

// until waits until a word of the ring has the value.
func (c *ringClient) until(t *testing.T, word int, value uint32) {
	t.Helper()
	require.Eventually(t, func() bool { return c.rings.Word32(word).Load() == value }, patience, time.Millisecond)
}

// release asks for a release, or after it. An answer that does not come is an error.
func (c *ringClient) release(number uint32, flags wire.ReleaseFlags) error {
	c.SetReadDeadline(time.Now().Add(patience))
	_, err := c.Call(wire.TRelease, 4, &wire.Release{Handle: number, Flags: flags}, nil, 0)
	return err
}

// results waits for n completions, and returns their results by their data.
func (c *ringClient) results(t *testing.T, n int) map[uint64]int64 {
	t.Helper()
	all := map[uint64]int64{}
	require.Eventually(t, func() bool {
		var done [64]wire.Completion
		k, err := c.rings.Reap(done[:])
		for _, d := range done[:k] {
			all[d.Data] = d.Result
		}
		wire.RingDoorbell(c.ends[1]) // there may be room for the completions of more
		return err != nil || len(all) >= n
	}, patience, time.Millisecond)
	require.Len(t, all, n)
	return all
}

const badf = -int64(unix.EBADF)

// TestReleaseQueued: what was put in before a release is carried out, though the daemon has not looked at it yet, and the answer comes after it. What is put in later names nothing.
func TestReleaseQueued(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	data := noise(2, mib)
	f := m.Write("file", data)
	for name, number := range map[string]func(c *ringClient) uint32{
		"memory": func(c *ringClient) uint32 { return c.memory.Handle },
		"file":   func(c *ringClient) uint32 { return c.file.Handle },
	} {
		t.Run(name, func(t *testing.T) {
			c := dialRing(t, f, mib, 8)
			read := wire.Submission{Op: wire.OpRead, File: c.file.Handle, Memory: c.memory.Handle, Len: mib}
			c.put(t, read)
			require.NoError(t, c.release(number(c), 0))
			require.EqualValues(t, 1, c.rings.Word32(cqTail).Load(), "it has ended")
			require.EqualValues(t, mib, c.results(t, 1)[0])
			got := make([]byte, mib)
			_, err := unix.Pread(c.memfd, got, 0)
			require.NoError(t, err)
			require.True(t, bytes.Equal(data, got))
			c.submit(t, read)
			require.EqualValues(t, badf, c.results(t, 1)[0])
			require.ErrorIs(t, c.release(number(c), 0), unix.EBADF)
		})
	}
}

// TestReleaseQueuedBrief: a brief release does not wait for them either, and they are carried out all the same. What is put in meanwhile names nothing.
func TestReleaseQueuedBrief(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	f := m.Write("file", noise(2, mib))
	c := dialRing(t, f, mib, 8)
	held, release := m.HoldFirst(blockdev.OpRead)
	t.Cleanup(release)
	read := wire.Submission{Op: wire.OpRead, File: c.file.Handle, Memory: c.memory.Handle, Len: mib}
	c.submit(t, read)
	held("the first read")
	read.Data = 1
	c.put(t, read)
	require.ErrorIs(t, c.release(c.memory.Handle, wire.ReleaseBrief), unix.EINPROGRESS)
	read.Data = 2
	c.submit(t, read)
	require.ErrorIs(t, c.release(c.memory.Handle, wire.ReleaseAsk), unix.EINPROGRESS)
	require.EqualValues(t, mib, m.Share.Usage()[0].Registered, "it is charged")
	release()
	require.Equal(t, map[uint64]int64{0: mib, 1: mib, 2: badf}, c.results(t, 3))
	require.Eventually(t, func() bool { return c.release(c.memory.Handle, wire.ReleaseAsk) == nil }, patience, time.Millisecond)
	require.EqualValues(t, 0, m.Share.Usage()[0].Registered)
}

// TestReleaseGoingOn: a client that goes on putting in what names the handle does not make its release longer. What it had put in before is carried out, what it puts in after the
// answer is not.
func TestReleaseGoingOn(t *testing.T) {
	const size = 4096
	m := sharetest.New(t, 64*mib, 16*mib)
	f := m.Write("file", noise(2, size))
	c := dialRing(t, f, size, 64)
	results := map[uint64]int64{}
	next, before, after := uint64(0), ^uint64(0), ^uint64(0)
	answer := make(chan error)
	for end := time.Now().Add(patience); after == ^uint64(0) || next < after+1000; {
		require.True(t, time.Now().Before(end), "the release does not end")
		if next >= 1000 && before == ^uint64(0) {
			before = next
			go func() { answer <- c.release(c.memory.Handle, 0) }()
		}
		subs := make([]wire.Submission, min(8, 64-(next-uint64(len(results)))))
		for i := range subs {
			subs[i] = wire.Submission{Data: next + uint64(i), Op: wire.OpRead, File: c.file.Handle, Memory: c.memory.Handle, Len: size}
		}
		c.submit(t, subs...)
		next += uint64(len(subs))
		var done [64]wire.Completion
		n, err := c.rings.Reap(done[:])
		require.NoError(t, err)
		for _, d := range done[:n] {
			results[d.Data] = d.Result
		}
		select {
		case err := <-answer:
			require.NoError(t, err)
			after = next
		default:
		}
	}
	for data, result := range c.results(t, int(next)-len(results)) {
		results[data] = result
	}
	for data, result := range results {
		switch {
		case data < before:
			require.EqualValues(t, size, result, "put in before")
		case data >= after:
			require.EqualValues(t, badf, result, "put in after")
		default:
			require.Contains(t, []int64{size, badf}, result)
		}
	}
}

// TestReleaseUnreaped: a client that takes no completions out does not make the release long. Of what it has put in only that is carried out for whose completions there is room.
func TestReleaseUnreaped(t *testing.T) {
	const size = 4096
	m := sharetest.New(t, 64*mib, 16*mib)
	f := m.Write("file", noise(2, size))
	c := dialRing(t, f, size, 8)
	var read [8]wire.Submission
	data := uint64(0)
	fresh := func(n int) []wire.Submission {
		for i := range read[:n] {
			read[i] = wire.Submission{Data: data, Op: wire.OpRead, File: c.file.Handle, Memory: c.memory.Handle, Len: size}
			data++
		}
		return read[:n]
	}
	c.submit(t, fresh(8)...)
	c.until(t, cqTail, 8)
	c.submit(t, fresh(4)...)
	c.until(t, cqTail, 12)
	c.put(t, fresh(8)...) // there is room for 4
	require.NoError(t, c.release(c.memory.Handle, 0))
	c.until(t, cqTail, 16)
	for data, result := range c.results(t, 20) {
		if data < 16 {
			require.EqualValues(t, size, result, data)
		} else {
			require.EqualValues(t, badf, result, data)
		}
	}
}

// TestReleaseImpossible: a release does not wait for what impossible counters say.
func TestReleaseImpossible(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	f := m.Write("file", noise(2, mib))
	for name, spoil := range map[string]struct {
		word  int
		value uint32
	}{"tail": {sqTail, 1000}, "a tail of before": {sqTail, ^uint32(0)}, "taken out": {cqHead, 5}, "head": {sqHead, 1000}} {
		t.Run(name, func(t *testing.T) {
			c := dialRing(t, f, mib, 8)
			read := wire.Submission{Op: wire.OpRead, File: c.file.Handle, Memory: c.memory.Handle, Len: mib}
			c.put(t, read, read)
			c.rings.Word32(spoil.word).Store(spoil.value)
			require.NoError(t, c.release(c.memory.Handle, 0))
			require.NoError(t, c.release(c.file.Handle, wire.ReleaseBrief))
			require.NoError(t, c.Close())
			settled(t, m, 0)
			has(t, m, share.Usage{})
		})
	}
}

// TestNumberOfAnother: what was put in before a handle was there does not name it, though it has its number.
func TestNumberOfAnother(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	f := m.Write("file", noise(2, mib))
	c := dialRing(t, f, mib, 8)
	number := c.ring.Handle + 1
	read := wire.Submission{Op: wire.OpRead, File: number, Memory: c.memory.Handle, Len: mib}
	c.put(t, read)
	var other wire.OpenReply
	_, err := c.Call(wire.TOpen, 5, &wire.Open{}, &other, 0, int(f.Fd()))
	require.NoError(t, err)
	require.Equal(t, number, other.Handle)
	require.EqualValues(t, badf, c.results(t, 1)[0])
	c.submit(t, read)
	require.EqualValues(t, mib, c.results(t, 1)[0])
}
