package main

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestAsker: an answer is passed on, and an error. What does not answer is not asked again until it has.
func TestAsker(t *testing.T) {
	a := asker[int]{limit: time.Minute}
	n, err := a.ask("one", func() (int, error) { return 1, nil })
	require.NoError(t, err)
	require.Equal(t, 1, n)
	_, err = a.ask("one", func() (int, error) { return 0, errors.ErrUnsupported })
	require.ErrorIs(t, err, errors.ErrUnsupported)

	a.limit = time.Millisecond
	hang := make(chan struct{})
	_, err = a.ask("hung", func() (int, error) { <-hang; return 0, nil })
	require.ErrorIs(t, err, errNoAnswer)
	a.limit = time.Minute
	for range 3 {
		_, err = a.ask("hung", func() (int, error) { t.Error("asked again"); return 0, nil })
		require.ErrorIs(t, err, errNoAnswer)
	}
	n, err = a.ask("other", func() (int, error) { return 3, nil })
	require.NoError(t, err)
	require.Equal(t, 3, n)
	close(hang)
	require.Eventually(t, func() bool {
		n, err := a.ask("hung", func() (int, error) { return 2, nil })
		return err == nil && n == 2
	}, time.Minute, time.Millisecond)
	require.Empty(t, a.hung)
}
