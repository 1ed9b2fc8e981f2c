package main

import (
	"bytes"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestManPages: the pages that are installed are what the commands and the table of options give.
func TestManPages(t *testing.T) {
	for path, args := range map[string][]string{"lanefs.8": {"help", "--man"}, "mount.lanefs.8": {"help", "--man", "mount"}} {
		var page bytes.Buffer
		root := rootCommand()
		root.SetArgs(args)
		root.SetOut(&page)
		require.NoError(t, root.Execute())
		there, err := os.ReadFile("../../docs/man/" + path)
		require.NoError(t, err)
		require.Equal(t, page.String(), string(there), "%s is old: go generate ./cmd/lanefs", path)
		if groff, err := exec.LookPath("groff"); err == nil {
			c := exec.Command(groff, "-man", "-Tascii", "-ww", "-z")
			c.Stdin = &page
			out, err := c.CombinedOutput()
			require.NoError(t, err)
			require.Empty(t, string(out), path)
		}
	}
}

func TestHelp(t *testing.T) {
	p := newPlace(t)
	require.Contains(t, p.ok("help", "mount"), "commit=SECONDS")
	require.Contains(t, p.ok("help", "vram", "pin"), "--user")
	require.Contains(t, p.ok("help"), "Available Commands")
	status, said := p.failsWith("help", "mout")
	require.Equal(t, exitUsage, status)
	require.Contains(t, said, `did you mean "mount"?`)
	require.Contains(t, p.fails("help", "--man", "stat"), "lanefs(8)")
}
