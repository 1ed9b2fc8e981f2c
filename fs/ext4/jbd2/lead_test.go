package jbd2

import (
	"runtime/debug"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev"
)

// commitsOn has the next commit say on what stack it runs.
func commitsOn(t *testing.T, c *Cache, j *Journal, block Block) (TID, *atomic.Pointer[string]) {
	var on atomic.Pointer[string]
	h, err := j.Begin(1)
	require.NoError(t, err)
	set(t, c, h, block, 1)
	h.OnCommit(func() {
		s := string(debug.Stack())
		on.Store(&s)
	})
	tid := h.TID()
	require.NoError(t, h.End())
	return tid, &on
}

// TestWaiterCommits: who waits for a commit carries it out, and nobody is woken for it. What nobody waits for is committed all the same.
func TestWaiterCommits(t *testing.T) {
	c, j := inPlaceOn(t, newTestDevice(1<<20, 512), Config{Interval: waitStep})
	tid, on := commitsOn(t, c, j, 7)
	require.Eventually(t, func() bool { return j.Committed(tid) }, waitLong, waitStep)
	require.Contains(t, *on.Load(), "committer")
	require.NoError(t, j.Close())
	require.NoError(t, c.Close())

	c, j = inPlaceOn(t, newTestDevice(1<<20, 512), Config{})
	tid, on = commitsOn(t, c, j, 8)
	require.NoError(t, j.WaitCommit(tid))
	require.Contains(t, *on.Load(), "WaitCommit")
	_, on = commitsOn(t, c, j, 9)
	require.NoError(t, j.Close())
	require.Contains(t, *on.Load(), "committer", "Close waits for the committer")
	require.NoError(t, c.Close())
}

// follow has others wait: some for the commit of tid, which is under way, and more for the next one.
func follow(t *testing.T, c *Cache, j *Journal, tid TID) (results chan error, n int) {
	results = make(chan error, 20)
	next := put(t, c, j, 50, 500)
	for i := range cap(results) {
		go func() { results <- j.WaitCommit([]TID{tid, next}[i%2]) }()
	}
	require.Eventually(t, func() bool {
		j.mu.Lock()
		defer j.mu.Unlock()
		return j.committing.waiters+j.running.waiters == cap(results)
	}, waitLong, waitStep)
	return results, cap(results)
}

// leadHeld has a caller commit tid, and returns when the commit's first request is held up, until open is closed. That request and those
// after it end with refused.
func leadHeld(d *testDevice, j *Journal, tid TID, refused error) (led chan error, open chan struct{}) {
	begun := make(chan struct{})
	open = make(chan struct{})
	var first atomic.Bool
	d.setRefuse(func(*blockdev.Request) error {
		if first.CompareAndSwap(false, true) {
			close(begun)
			<-open
		}
		return refused
	})
	led = make(chan error, 1)
	go func() { led <- j.WaitCommit(tid) }()
	<-begun
	return led, open
}

// TestLeaderPassesOn: a caller's commit wakes those that share it, and one of those that wait for the next goes on, whatever has become of
// the first. Nobody is forgotten.
func TestLeaderPassesOn(t *testing.T) {
	for what, refused := range map[string]error{"committed": nil, "failed": errInjected, "held": blockdev.ErrNoSpace} {
		t.Run(what, func(t *testing.T) {
			d, m := newLogged(t, Config{})
			require.NoError(t, m.j.WaitCommit(put(t, m.c, m.j, 50, 1))) // from here on the cache has it
			tid := put(t, m.c, m.j, 41, 410)
			led, open := leadHeld(d, m.j, tid, refused)
			results, n := follow(t, m.c, m.j, tid)
			close(open)
			want := map[string]error{"failed": ErrAborted, "held": ErrHeld}[what]
			require.ErrorIs(t, <-led, want)
			for range n {
				require.ErrorIs(t, <-results, want)
			}
			switch what {
			case "failed":
				m.j.AwaitMark()
			case "held":
				d.setRefuse(nil)
				require.NoError(t, m.j.Commit())
			}
			require.ErrorIs(t, m.j.Close(), map[string]error{"failed": ErrAborted}[what])
			require.NoError(t, m.c.Close())
		})
	}
}

// TestCloseDuringALeadersCommit: the committer, which ends with the journal, waits for the caller that commits, and commits the rest.
func TestCloseDuringALeadersCommit(t *testing.T) {
	d, m := newLogged(t, Config{})
	require.NoError(t, m.j.WaitCommit(put(t, m.c, m.j, 42, 1))) // from here on the cache has it
	tid := put(t, m.c, m.j, 41, 410)
	led, open := leadHeld(d, m.j, tid, nil)
	put(t, m.c, m.j, 42, 420)
	closed := make(chan error, 1)
	go func() { closed <- m.j.Close() }()
	require.Eventually(t, func() bool {
		m.j.mu.Lock()
		defer m.j.mu.Unlock()
		return m.j.quit
	}, waitLong, waitStep)
	require.Empty(t, closed)
	close(open)
	require.NoError(t, <-led)
	require.NoError(t, <-closed)
	require.NoError(t, m.c.Close())
	require.EqualValues(t, 410, valueIn(d.durable, 41))
	require.EqualValues(t, 420, valueIn(d.durable, 42))
}

// TestComesDuringATry: who comes while a try goes on that fails for lack of room waits for one that begins afterwards: there may be room by then, as after a file was removed.
func TestComesDuringATry(t *testing.T) {
	d, m := newLogged(t, Config{})
	require.NoError(t, m.j.WaitCommit(put(t, m.c, m.j, 50, 1))) // from here on the cache has it
	tid := put(t, m.c, m.j, 41, 410)
	d.setRefuse(func(*blockdev.Request) error { return blockdev.ErrNoSpace })
	require.ErrorIs(t, m.j.WaitCommit(tid), ErrHeld)
	begun, open := make(chan struct{}), make(chan struct{})
	var tried atomic.Bool
	d.setRefuse(func(*blockdev.Request) error {
		if tried.Swap(true) {
			return nil
		}
		close(begun)
		<-open
		return blockdev.ErrNoSpace
	})
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- m.j.WaitCommit(tid) }()
	<-begun
	go func() { second <- m.j.WaitCommit(tid) }()
	require.Eventually(t, func() bool {
		m.j.mu.Lock()
		defer m.j.mu.Unlock()
		return m.j.committing != nil && m.j.committing.waiters == 1 || m.j.running != nil && m.j.running.waiters == 1
	}, waitLong, waitStep)
	close(open)
	require.ErrorIs(t, <-first, ErrHeld)
	require.NoError(t, <-second)
	require.NoError(t, m.j.Close())
	require.NoError(t, m.c.Close())
}
