package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReadmeOptions: README's table of options has all that the parser takes, and nothing else.
func TestReadmeOptions(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(text), "Options of `-o`:")
	require.True(t, found)
	table, _, _ = strings.Cut(strings.TrimSpace(table), "\n\n")
	listed := map[string]bool{}
	for _, line := range strings.Split(table, "\n")[2:] {
		names, _, _ := strings.Cut(strings.TrimPrefix(strings.ReplaceAll(line, `\|`, "/"), "|"), "|")
		for _, m := range regexp.MustCompile("`([A-Za-z_-]+)(=?)[^`]*`").FindAllStringSubmatch(names, -1) {
			name, valued := m[1], m[2] == "="
			require.False(t, listed[name], "%s is there twice", name)
			listed[name] = true
			switch {
			case valued:
				require.Contains(t, values, name)
			case name != "x-":
				_, tuned := tuning[name]
				require.True(t, flags[name] != nil || isVFS(name) || noise[name] || tuned, "the parser does not know %s", name)
			}
		}
	}
	for _, o := range knownOptions() {
		name, _, _ := strings.Cut(o, "=")
		opposite := slices.ContainsFunc(strings.Fields(vfs[name]), func(o string) bool { return listed[o] })
		require.True(t, listed[name] || opposite || name == "atime" || name == "norelatime", "README lacks %s", name)
	}
	for name := range tuning {
		require.True(t, listed[name], "README lacks %s", name)
	}
	for name := range noise {
		require.True(t, listed[name], "README lacks %s", name)
	}
}
