package share

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/share/wire"
)

// TestPlaces: a ring gets the place of another ring's worker that has nothing to do, and not of one that has. Each ring keeps its first worker, and
// what is closed gives back what it has.
func TestPlaces(t *testing.T) {
	p := newPlaces(2)
	rings := func() *ring {
		r := newRing(p, nil, [2]*moved{{}, {}})
		theirs, err := r.make(8)
		require.NoError(t, err)
		wire.CloseAll(theirs)
		return r
	}
	end := func(r *ring) {
		r.queue.end()
		r.workers.Wait()
		p.give(int(max(r.started.Load()-1, 0)))
		r.free()
	}
	greedy, late := rings(), rings()
	require.True(t, greedy.begin(nil))
	require.True(t, greedy.begin(nil))
	require.True(t, greedy.begin(nil))
	require.EqualValues(t, 3, greedy.started.Load())
	require.Len(t, p.taken, 2)

	// What late begins is at work from then on: it waits for a lock that completions take. Else late would get its own workers' places, too.
	late.mu.Lock()
	require.True(t, late.begin(&batch{jobs: []job{}}), "each ring has one")
	until := time.Now().Add(time.Minute)
	for got := 0; got < 2 && time.Now().Before(until); time.Sleep(time.Millisecond) { // those of greedy may not wait yet
		if late.begin(&batch{jobs: []job{}}) {
			got++
		}
	}
	require.EqualValues(t, 3, late.started.Load())
	require.Eventually(t, func() bool { return greedy.started.Load() == 1 }, time.Minute, time.Millisecond)
	require.Len(t, p.taken, 2)
	require.False(t, greedy.begin(nil), "all have something to do")
	late.mu.Unlock()
	end(greedy)
	require.Len(t, p.taken, 2)
	end(late)
	require.Empty(t, p.taken)
}
