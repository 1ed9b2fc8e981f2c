package main

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs"
)

func TestAddProcs(t *testing.T) {
	was := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(was)
	t.Setenv("GOMAXPROCS", "3")
	addProcs(false)
	require.Equal(t, was, runtime.GOMAXPROCS(0), "the user's number stays")
	require.Nil(t, noteCrowd(), "likewise")
	require.Zero(t, keepers(), "nobody gives them processors")
	t.Setenv("GOMAXPROCS", "")
	require.NotNil(t, noteCrowd())
	addProcs(true)
	require.Equal(t, was+keepers(), runtime.GOMAXPROCS(0))
	runtime.GOMAXPROCS(was)
	addProcs(false)
	require.Equal(t, was+fs.Readers(was), runtime.GOMAXPROCS(0))
}

// TestCrowd: there are more processors while there is a crowd, and as many as before when it is gone.
func TestCrowd(t *testing.T) {
	was := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(was)
	var c crowd
	for range crowdEnough - 1 {
		c.note()
	}
	time.Sleep(5 * time.Millisecond)
	require.Equal(t, was, runtime.GOMAXPROCS(0), "too few to count")
	for range 2 {
		come(t, &c, was)
		require.Eventually(t, func() bool { return runtime.GOMAXPROCS(0) == was }, time.Minute, time.Millisecond)
		require.Eventually(t, func() bool { return !c.raised.Load() }, time.Minute, time.Millisecond)
	}
}

// come notes requests until there are more processors than before. That is for one look at least, but this test may be kept from running for so long: so more
// requests come until it has seen them.
func come(t *testing.T, c *crowd, was int) {
	t.Helper()
	require.Eventually(t, func() bool {
		for range crowdEnough {
			c.note()
		}
		return runtime.GOMAXPROCS(0) > was
	}, time.Minute, time.Millisecond)
}

// TestCrowdBeforeAddProcs: the threads of rings that keep their processors have them also if there was a crowd when they were given them.
func TestCrowdBeforeAddProcs(t *testing.T) {
	was := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(was)
	t.Setenv("GOMAXPROCS", "")
	var c crowd
	come(t, &c, was)
	addProcs(true)
	require.Eventually(t, func() bool { return !c.raised.Load() }, time.Minute, time.Millisecond)
	require.Equal(t, was+keepers(), runtime.GOMAXPROCS(0))
}
