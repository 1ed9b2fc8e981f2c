package copyengine

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// begins says whether a batch has its turn at once.
func begins(t *turns, n int64) bool {
	had := make(chan struct{})
	go func() {
		t.begin(n, func() {})
		close(had)
	}()
	for { // until it has it, or waits
		select {
		case <-had:
			return true
		default:
		}
		t.mu.Lock()
		waits := len(t.waiting) > 0
		t.mu.Unlock()
		if waits {
			return false
		}
		runtime.Gosched()
	}
}

// Large batches have their turn three at a time, in order; smaller ones as long as there are few bytes under way; and what has its turn never waits.
func TestTurns(t *testing.T) {
	var u turns
	for range turnBatches {
		require.True(t, begins(&u, 64<<20))
	}
	require.False(t, begins(&u, 16<<20))
	u.more(1 << 20)
	second := make(chan struct{})
	go func() {
		u.begin(1<<20, func() {})
		close(second)
	}()
	require.Eventually(t, func() bool {
		u.mu.Lock()
		defer u.mu.Unlock()
		return len(u.waiting) == 2
	}, 10*time.Second, time.Millisecond)
	u.end(65 << 20)
	require.Len(t, u.waiting, 1, "the first that waited")
	require.EqualValues(t, 1<<20, u.waiting[0].bytes)
	u.end(64 << 20)
	<-second
	u.end(64 << 20)
	u.end(16 << 20)
	u.end(1 << 20)
	require.Zero(t, u.bytes)
	require.Zero(t, u.batches)

	for range turnBytes >> 20 {
		require.True(t, begins(&u, 1<<20))
	}
	require.False(t, begins(&u, 1<<20))
	for range turnBytes>>20 + 1 {
		u.end(1 << 20)
	}
	require.Zero(t, u.batches)
}

// Many batches at once all have their turn.
func TestTurnsOfMany(t *testing.T) {
	var u turns
	var all sync.WaitGroup
	var most, now atomic.Int64
	for i := range 64 {
		all.Go(func() {
			for k := range 200 {
				n := int64(1+(i*7+k)%64) << 20
				u.begin(n, func() {})
				most.Store(max(most.Load(), now.Add(1)))
				u.more(3)
				now.Add(-1)
				u.end(n + 3)
			}
		})
	}
	all.Wait()
	require.Zero(t, u.bytes)
	require.Zero(t, u.batches)
	require.LessOrEqual(t, most.Load(), int64(turnBytes>>20+turnBatches))
}
