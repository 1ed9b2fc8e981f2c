package softctl

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPatience: a thread that is woken for nothing again and again, as it is while a command hangs, soon polls no longer than it takes to see that; once it has done
// something it polls as long as at first.
func TestPatience(t *testing.T) {
	now := time.Unix(1, 0)
	p := patience{awake: threadAwake}
	polls := func() time.Duration { // until it sleeps, a microsecond each
		n := 0
		for {
			n++
			now = now.Add(time.Microsecond)
			if p.look() && p.over(now) {
				return time.Duration(n) * time.Microsecond
			}
		}
	}
	first := polls()
	require.Greater(t, first, threadAwake)
	for want := threadAwake / 2; want > 0; want /= 2 {
		p.woke()
		took := polls()
		require.GreaterOrEqual(t, took, want)
		require.LessOrEqual(t, took, want+2*threadSpins*time.Microsecond)
	}
	p.woke()
	require.Equal(t, threadSpins*time.Microsecond, polls(), "woken for nothing for the nth time")
	p.woke()
	p.did()
	require.Equal(t, first, polls())
}
