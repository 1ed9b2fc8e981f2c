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
	for range 10 * crowdEnough {
		c.note()
	}
	is := func(want func(procs int) bool) {
		t.Helper()
		require.Eventually(t, func() bool { return want(runtime.GOMAXPROCS(0)) }, time.Minute, time.Millisecond)
	}
	is(func(procs int) bool { return procs > was })
	is(func(procs int) bool { return procs == was })
	require.Eventually(t, func() bool { return !c.raised.Load() }, time.Minute, time.Millisecond)
	for range crowdEnough { // again
		c.note()
	}
	is(func(procs int) bool { return procs > was })
	is(func(procs int) bool { return procs == was })
	require.Eventually(t, func() bool { return !c.raised.Load() }, time.Minute, time.Millisecond)
}

// TestCrowdBeforeAddProcs: the threads of rings that keep their processors have them also if there was a crowd when they were given them.
func TestCrowdBeforeAddProcs(t *testing.T) {
	was := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(was)
	t.Setenv("GOMAXPROCS", "")
	var c crowd
	for range crowdEnough {
		c.note()
	}
	require.Eventually(t, func() bool { return runtime.GOMAXPROCS(0) > was }, time.Minute, time.Millisecond)
	addProcs(true)
	require.Eventually(t, func() bool { return !c.raised.Load() }, time.Minute, time.Millisecond)
	require.Equal(t, was+keepers(), runtime.GOMAXPROCS(0))
}
