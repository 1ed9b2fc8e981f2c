package main

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestManPages: the pages that are installed are what the commands and the table of options give, and no other.
func TestManPages(t *testing.T) {
	pages := manPages(rootCommand())
	there, err := filepath.Glob("../../docs/man/*.8")
	require.NoError(t, err)
	for i := range there {
		there[i] = filepath.Base(there[i])
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(pages)), there)
	for name, page := range pages {
		there, err := os.ReadFile("../../docs/man/" + name)
		require.NoError(t, err)
		require.Equal(t, page, string(there), "%s is old: go generate ./cmd/lanefs", name)
		if groff, err := exec.LookPath("groff"); err == nil {
			c := exec.Command(groff, "-man", "-Tascii", "-ww", "-z")
			c.Stdin = strings.NewReader(page)
			out, err := c.CombinedOutput()
			require.NoError(t, err)
			require.Empty(t, string(out), name)
		}
	}
}

func TestHelp(t *testing.T) {
	p := newPlace(t)
	require.Contains(t, p.ok("help", "mount"), "commit=SECONDS")
	require.Contains(t, p.ok("help", "vram", "pin"), "--user")
	require.Contains(t, p.ok("help"), "Available Commands")
	require.Contains(t, p.ok("help", "--man", "stat"), "LANEFS-STAT")
	status, said := p.failsWith("help", "mout")
	require.Equal(t, exitUsage, status)
	require.Contains(t, said, `did you mean "mount"?`)
}

// TestCompletion: a shell is told commands, flags and mount options, and the scripts for it are what that shell can read.
func TestCompletion(t *testing.T) {
	p := newPlace(t)
	complete := func(args ...string) string {
		out, _, err := p.run(append([]string{"__complete"}, args...)...)
		require.NoError(t, err)
		return out
	}
	require.Contains(t, complete("um"), "umount")
	require.Contains(t, complete("mount", "-o", ""), "lanes=")
	require.Contains(t, complete("mount", "-o", "ro,lan"), "ro,lanes=")
	require.Contains(t, complete("mount", "-o", "errors="), "errors=panic")
	require.Contains(t, complete("mount", "--gpu", ""), "cuda")
	for _, shell := range []string{"bash", "zsh", "fish"} {
		script := p.ok("completion", shell)
		bin, err := exec.LookPath(shell)
		if err != nil {
			t.Logf("SKIPPED: %s is missing, so its script is not read", shell)
			continue
		}
		c := exec.Command(bin, "-n")
		c.Stdin = strings.NewReader(script)
		out, err := c.CombinedOutput()
		require.NoError(t, err, "%s: %s", shell, out)
	}
}
