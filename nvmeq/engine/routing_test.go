package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func lengths(n ...uint32) (cmds []Command) {
	for _, l := range n {
		cmds = append(cmds, Command{Len: l})
	}
	return cmds
}

// TestSharedFor: a GPU that was late is shared for a while, and one that never was is not.
func TestSharedFor(t *testing.T) {
	var r router
	require.False(t, r.shared(0))
	r.sharedUntil.Store(100)
	require.True(t, r.shared(99))
	require.False(t, r.shared(100))
}

// TestLateBehindData: a heartbeat may be older by the time that the data under way takes, and no longer once it has ended.
func TestLateBehindData(t *testing.T) {
	e := &Engine{cfg: Config{LateAfter: 100 * time.Microsecond}}
	require.Equal(t, 100*time.Microsecond, e.lateAfter())
	first := e.router.begins(lengths(1<<20, 3<<20))
	require.Equal(t, 100*time.Microsecond+4<<20/16, e.lateAfter())
	second := e.router.begins(lengths(16 << 20))
	require.Equal(t, 100*time.Microsecond+20<<20/16, e.lateAfter())
	first.end()
	require.Equal(t, 100*time.Microsecond+16<<20/16, e.lateAfter())
	second.end()
	require.Equal(t, 100*time.Microsecond, e.lateAfter())
}

// TestSmallAndLongest: a batch is as large as its commands together, and is where its longest is.
func TestSmallAndLongest(t *testing.T) {
	for _, c := range []struct {
		cmds  []Command
		small bool
		at    int
	}{
		{lengths(0), true, 0}, {lengths(64 << 10), true, 0}, {lengths(64<<10 + 512), false, 0}, {lengths(32<<10, 32<<10), true, 0}, {lengths(32<<10, 32<<10, 512), false, 0},
		{lengths(512, 4096, 512), true, 1}, {lengths(512, 4096, 1<<20), false, 2}, {lengths(4096, 512, 4096), true, 0},
	} {
		require.Equal(t, c.small, isSmall(c.cmds))
		require.Same(t, &c.cmds[c.at], longest(c.cmds))
	}
}

// TestProbes: a GPU is in time when three probes in a row were, not counting those that no lane could make; a late one begins anew, and has the next one wait longer.
func TestProbes(t *testing.T) {
	p := probes{pause: firstProbe}
	for i, c := range []struct {
		next   probed
		enough bool
		pause  time.Duration
	}{
		{probeNone, false, firstProbe}, {probeInTime, false, firstProbe}, {probeInTime, false, firstProbe}, {probeLate, false, 2 * firstProbe}, {probeLate, false, 4 * firstProbe},
		{probeInTime, false, 4 * firstProbe}, {probeLate, false, 8 * firstProbe}, {probeLate, false, longestBetween}, {probeLate, false, longestBetween},
		{probeInTime, false, longestBetween}, {probeInTime, false, longestBetween}, {probeNone, false, longestBetween}, {probeInTime, true, longestBetween},
	} {
		require.Equal(t, c.enough, p.enough(c.next), i)
		require.Equal(t, c.pause, p.pause, i)
	}
}
