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
	addProcs(false)
	require.Equal(t, was, runtime.GOMAXPROCS(0), "the user's number stays")
	t.Setenv("GOMAXPROCS", "")
	addProcs(true)
	require.Equal(t, was, runtime.GOMAXPROCS(0), "rings need none")
	addProcs(false)
	require.Equal(t, was+fs.Readers(was), runtime.GOMAXPROCS(0))
}
