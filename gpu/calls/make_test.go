package calls

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMake: who waits has what the call gives, until it is given up; then that is late's, once.
func TestMake(t *testing.T) {
	bad := errors.New("as the test wants it")
	got, end, err := Make(Wait{Limit: time.Minute}, func() (int, error) { return 1, bad }, func(int, error) { t.Error("it is not late") })
	require.Equal(t, 1, got)
	require.Equal(t, Returned, end)
	require.ErrorIs(t, err, bad)

	over := make(chan struct{})
	for _, w := range []struct {
		w   Wait
		end End
	}{
		{Wait{Limit: time.Millisecond}, Late},
		{Wait{Limit: time.Millisecond, Step: time.Hour, Over: over}, Unwanted},
		{Wait{Limit: time.Hour, Step: time.Millisecond, Spent: func(_, _ time.Duration) time.Duration { return time.Hour }}, Late},
	} {
		if w.end == Unwanted {
			close(over)
		}
		until, late := make(chan struct{}), make(chan int)
		got, end, err = Make(w.w, func() (int, error) { <-until; return 2, bad }, func(n int, err error) {
			if !errors.Is(err, bad) {
				t.Error(err)
			}
			late <- n
		})
		require.Zero(t, got)
		require.Equal(t, w.end, end)
		require.NoError(t, err)
		close(until)
		require.Equal(t, 2, <-late)
	}
}

// TestMakeWhile: time that does not count is not spent.
func TestMakeWhile(t *testing.T) {
	var counts atomic.Bool
	var looks atomic.Int64
	until := make(chan struct{})
	defer close(until)
	go func() {
		for looks.Load() < 20 {
			time.Sleep(time.Millisecond)
		}
		counts.Store(true)
	}()
	_, end, _ := Make(Wait{Limit: 8 * time.Millisecond, Spent: While(func() bool { looks.Add(1); return counts.Load() })}, func() (int, error) { <-until; return 0, nil }, nil)
	require.Equal(t, Late, end)
	require.GreaterOrEqual(t, looks.Load(), int64(20+8))
}
