package driver

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestWait: work that has not ended is given up after the limit, of which time in which the process stood still counts a quarter at most.
func TestWait(t *testing.T) {
	const limit = 200 * time.Millisecond
	asked := 0
	done, err := wait(func() (bool, error) {
		if asked++; asked == 2 {
			time.Sleep(2 * limit)
		}
		return asked == 5, nil
	}, limit)
	require.NoError(t, err)
	require.True(t, done, "what runs goes on after the process, not before")

	done, err = wait(func() (bool, error) { return false, nil }, limit)
	require.NoError(t, err)
	require.False(t, done)

	asked = 0
	done, err = wait(func() (bool, error) { asked++; return false, nil }, 0)
	require.NoError(t, err)
	require.False(t, done)
	require.Equal(t, 1, asked)

	bad := errors.New("as the test wants it")
	_, err = wait(func() (bool, error) { return false, bad }, time.Hour)
	require.ErrorIs(t, err, bad)
}
