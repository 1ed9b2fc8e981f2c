package main

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs"
)

func TestAddProcs(t *testing.T) {
	was := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(was)
	t.Setenv("GOMAXPROCS", "3")
	addProcs(8)
	require.Equal(t, was, runtime.GOMAXPROCS(0), "the user's number stays")
	t.Setenv("GOMAXPROCS", "")
	addProcs(8)
	require.Equal(t, was+8, runtime.GOMAXPROCS(0))
	runtime.GOMAXPROCS(was)
	addProcs(1000)
	require.Equal(t, was+mostProcs, runtime.GOMAXPROCS(0))
	runtime.GOMAXPROCS(was)
	addProcs(0)
	require.Equal(t, was+fs.Readers(was), runtime.GOMAXPROCS(0), "of /dev/fuse")
}
