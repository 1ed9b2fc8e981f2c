package main

import (
	"os"
	"regexp"
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
	require.Equal(t, release+" (gabc)", versionOf("gabc", info("v0.9.0")), "make's")
	require.Equal(t, release+" (v0.9.0)", versionOf("", info("v0.9.0")), "go install's")
	require.Equal(t, release, versionOf("v"+release, info("")))
	require.Equal(t, release, versionOf("", info("(devel)")))
	require.Equal(t, release, versionOf("", info("")), "without git")
}

// TestChangelog: the newest entry is the version that the binary has.
func TestChangelog(t *testing.T) {
	text, err := os.ReadFile("../../docs/CHANGELOG.md")
	require.NoError(t, err)
	newest := regexp.MustCompile(`(?m)^## ([0-9]+\.[0-9]+\.[0-9]+)`).FindSubmatch(text)
	require.NotNil(t, newest)
	require.Equal(t, release, string(newest[1]))
}
