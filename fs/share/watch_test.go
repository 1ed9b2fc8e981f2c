package share

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestWatch: of a batch that lasts the lead is taken away, once, and of many that follow one another it is not. A ring without batches has no timer.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var taken []time.Duration // since start
		var start time.Time
		w := newWatch(func() { taken = append(taken, time.Since(start)) })
		off := func() {
			t.Helper()
			for range 3 {
				time.Sleep(watchEvery)
			}
			synctest.Wait()
			require.False(t, w.on.Load(), "the watch ends")
		}
		off()
		for round, before := range []time.Duration{0, watchEvery / 3, watchEvery - 1, watchEvery, watchEvery + 1, 10 * watchEvery} { // since the last batch
			require.True(t, w.end(w.begin()))
			time.Sleep(before)
			start = time.Now()
			turn := w.begin()
			time.Sleep(10 * watchEvery)
			synctest.Wait()
			require.False(t, w.end(turn), "the lead is another's")
			require.Len(t, taken, round+1)
			require.GreaterOrEqual(t, taken[round], watchEvery)
			require.LessOrEqual(t, taken[round], 2*watchEvery)
			off()
		}
		taken = nil
		for _, each := range []time.Duration{time.Millisecond, watchEvery / 2, watchEvery - 1} {
			for range 300 {
				turn := w.begin()
				time.Sleep(each)
				require.True(t, w.end(turn))
				require.True(t, w.on.Load())
			}
		}
		off()
		require.Empty(t, taken)
		require.Zero(t, testing.AllocsPerRun(100, func() { w.end(w.begin()) }))
	})
}
