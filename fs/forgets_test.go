package fs

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestForgetsOfOneMessage: the thread naps once for a message, however long the FORGETs in it take.
func TestForgetsOfOneMessage(t *testing.T) {
	var f forgets
	now := time.Second
	for range 3 {
		require.True(t, f.fresh(now), "a message has come")
		for range 100 {
			now += time.Millisecond // a file is freed
			f.done(now)
			now += forgetGap / 4
			require.False(t, f.fresh(now), "the next one of the message")
		}
		now += 2 * forgetGap // read(2)
	}
}
