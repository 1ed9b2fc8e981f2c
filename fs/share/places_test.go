package share

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/share/wire"
)

// taken is how many places a tenant has.
func taken(t *tenant) int {
	t.p.mu.Lock()
	defer t.p.mu.Unlock()
	return t.mine.n
}

// free is how many places nobody has.
func (p *places) free() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.left
}

// ringOf is a ring without goroutines but workers.
func ringOf(t *testing.T, c *tenant) *ring {
	t.Helper()
	r := newRing(c, never(), [2]*moved{{}, {}})
	theirs, err := r.make(8)
	require.NoError(t, err)
	wire.CloseAll(theirs)
	return r
}

func endWorkers(r *ring) {
	r.queue.end()
	r.workers.Wait()
	r.free()
}

// busy begins a worker that is at work from then on: it waits for a lock that completions take, and the caller has.
func busy(r *ring) bool { return r.begin(&batch{jobs: []job{}}) }

// until begins n busy workers, whose places others may be about to give away.
func begun(t *testing.T, r *ring, n int) {
	t.Helper()
	until := time.Now().Add(time.Minute)
	for got := 0; got < n; time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(until), "%d of %d", got, n)
		for got < n && busy(r) {
			got++
		}
	}
}

// TestPlaces: a ring gets the place of another ring's worker that has nothing to do, and not of one that has. Each ring keeps its first worker, and
// what is closed gives back what it has.
func TestPlaces(t *testing.T) {
	p := newPlaces(2, 2)
	a, b := p.tenant(1), p.tenant(1)
	greedy, late := ringOf(t, a), ringOf(t, b)
	for range 3 {
		require.True(t, greedy.begin(nil))
	}
	require.EqualValues(t, 3, greedy.started.Load())
	require.Zero(t, p.free())

	late.mu.Lock() // else late would get its own workers' places, too
	require.True(t, busy(late), "each ring has one")
	begun(t, late, 2)
	require.EqualValues(t, 3, late.started.Load())
	require.Eventually(t, func() bool { return greedy.started.Load() == 1 && taken(a) == 0 }, time.Minute, time.Millisecond)
	require.Equal(t, 2, taken(b))
	require.False(t, greedy.begin(nil), "all have something to do")
	late.mu.Unlock()
	endWorkers(greedy)
	require.Zero(t, p.free())
	endWorkers(late)
	require.Equal(t, 2, p.free())
	a.leave()
	require.Len(t, p.users, 1)
	b.leave()
	require.Empty(t, p.users)
}

// TestPlacesOfOne: a client has a quarter of the places, and all clients of a user leave a quarter to other users, though no worker has anything else to do than
// to wait for a device. Who has all that it may have gets the place of a worker of its own, or of its user's, that has nothing to do, and not of another user's.
func TestPlacesOfOne(t *testing.T) {
	const all, client = 16, 4
	p := newPlaces(all, client)
	var rings []*ring
	hang := func(uid uint32) *ring {
		r := ringOf(t, p.tenant(uid))
		r.mu.Lock()
		rings = append(rings, r)
		require.True(t, busy(r), "each ring has one")
		return r
	}
	for range 3 {
		r := hang(7)
		begun(t, r, client)
		require.False(t, busy(r), "a client has a quarter")
	}
	fourth := hang(7)
	require.False(t, busy(fourth), "a user leaves a quarter")
	require.Equal(t, all-3*client, p.free())

	other := ringOf(t, p.tenant(8))
	for range client + 1 {
		require.True(t, other.begin(nil))
	}
	require.Zero(t, p.free())
	require.Never(t, func() bool { return busy(fourth) }, 20*time.Millisecond, time.Millisecond, "those are another user's")

	rest := ringOf(t, other.tenant) // of the client that has all it may have
	rest.mu.Lock()
	require.True(t, busy(rest))
	begun(t, rest, 2)
	require.Eventually(t, func() bool { return taken(rest.tenant) == client }, time.Minute, time.Millisecond)
	require.Zero(t, p.free())

	third := ringOf(t, p.tenant(9)) // all have theirs
	third.mu.Lock()
	require.True(t, busy(third))
	begun(t, third, 2)
	require.False(t, busy(third), "none has nothing to do")
	require.Eventually(t, func() bool { return taken(rest.tenant) == client-2 }, time.Minute, time.Millisecond)
	for _, r := range append(rings, rest, third) {
		r.mu.Unlock()
		endWorkers(r)
	}
	endWorkers(other)
	require.Equal(t, all, p.free())
	for _, u := range p.users {
		require.Zero(t, u.n)
	}
}
