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
	addProcs()
	require.Equal(t, was, runtime.GOMAXPROCS(0), "the user's number stays")
	t.Setenv("GOMAXPROCS", "")
	addProcs()
	require.Equal(t, was+fs.Readers(was), runtime.GOMAXPROCS(0))
}
