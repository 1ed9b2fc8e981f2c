package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMountedByClockThatWasSet: the time of the mount is by the clock as it is now: one that was set since would make a mount of a minute one of fifty years, or of less than nothing.
func TestMountedByClockThatWasSet(t *testing.T) {
	now := thisMoment()
	ago := func(age, set time.Duration) moment { return moment{now.wall.Add(-age - set), now.boot - age} }
	for _, set := range []time.Duration{56 * 365 * 24 * time.Hour, 5 * time.Hour, -5 * time.Hour, -20 * 365 * 24 * time.Hour} {
		require.Equal(t, time.Minute, now.wall.Sub(ago(time.Minute, set).seenFrom(now)), "%v", set)
	}
	for _, set := range []time.Duration{0, time.Nanosecond, -time.Second, time.Second} { // of no clock that was set: it does not change from one answer to the next
		m := ago(time.Minute, set)
		require.Equal(t, m.wall, m.seenFrom(now), "%v", set)
	}
	asleep := ago(8*time.Hour, 0) // in which only the time since the boot goes on
	require.Equal(t, 8*time.Hour, now.wall.Sub(asleep.seenFrom(now)))
}
