package main

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestVersion(t *testing.T) {
	info := func(version string) func() (*debug.BuildInfo, bool) {
		return func() (*debug.BuildInfo, bool) {
			return &debug.BuildInfo{Main: debug.Module{Version: version}}, version != ""
		}
	}
	require.Equal(t, "v1-2-gabc", versionOf("v1-2-gabc", info("v0.9.0")), "make's")
	require.Equal(t, "v0.9.0", versionOf("", info("v0.9.0")), "go install's")
	require.Equal(t, "unknown", versionOf("", info("(devel)")))
	require.Equal(t, "unknown", versionOf("", info("")))
}
