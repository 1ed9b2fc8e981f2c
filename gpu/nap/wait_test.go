package nap

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestWait: time counts as it passes, but for what is longer than a quarter of the limit between two looks.
func TestWait(t *testing.T) {
	const limit = time.Second
	var w Wait
	now := time.Now()
	require.Zero(t, w.Look(now, limit), "it begins")
	for n := range 5 {
		now = now.Add(limit / 8)
		require.Equal(t, limit/8*time.Duration(n+1), w.Look(now, limit))
	}
	now = now.Add(time.Hour)
	require.Equal(t, limit/8*5+limit/4, w.Look(now, limit), "the process was stopped")
	now = now.Add(limit / 4)
	require.Greater(t, w.Look(now, limit), limit)
}
