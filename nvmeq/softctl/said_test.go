package softctl

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A medium that fails again and again does not fill the log: some failures are said, the others counted with the next that is.
func TestSaid(t *testing.T) {
	var log bytes.Buffer
	h, q := ready(t, Options{Log: textLog(&log)})
	_, at := h.alloc(4096)
	require.NoError(t, os.Truncate(h.path, 1<<20))
	for range 500 {
		h.expect(unrecoveredRead|doNotRetry, q, rw(opRead, 1, 8192, 8).prp(at, 0))
	}
	said := strings.Count(log.String(), "image failed")
	require.Greater(t, said, 0)
	require.Less(t, said, 500)

	var s saying
	now := time.Now()
	for range saidAtOnce {
		left, ok := s.may(now)
		require.True(t, ok)
		require.Zero(t, left)
	}
	for range 7 {
		_, ok := s.may(now.Add(saidPause - 1))
		require.False(t, ok)
	}
	left, ok := s.may(now.Add(saidPause))
	require.True(t, ok)
	require.Equal(t, 7, left)
	left, ok = s.may(now.Add(saidPause))
	require.True(t, ok)
	require.Zero(t, left)
}
