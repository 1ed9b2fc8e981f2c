package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTutorial runs each command of docs/TUTORIAL.md as it stands.
func TestTutorial(t *testing.T) {
	p := newPlace(t)
	text, err := os.ReadFile("../../docs/TUTORIAL.md")
	require.NoError(t, err)
	var script strings.Builder
	for _, m := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		script.WriteString(m[1])
	}
	require.Contains(t, script.String(), "e2fsck")
	bin, dir := p.mkdir("bin"), p.mkdir("tutorial")
	require.NoError(t, os.Symlink(p.bin, filepath.Join(bin, "lanefs")))
	p.dirs = append(p.dirs, filepath.Join(dir, "mnt"))
	c := exec.Command("bash", "-exo", "pipefail", "-c", script.String())
	c.Dir, c.Env = dir, append(p.env, "PATH="+bin+":"+os.Getenv("PATH"))
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "precious")
}
