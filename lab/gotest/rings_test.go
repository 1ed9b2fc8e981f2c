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

// TestWithRings: the linker sets what auto means. Were the variable renamed, or no string any more, all tests would run on one
// transport, and nothing would say so.
func TestWithRings(t *testing.T) {
	for _, want := range []string{"on", "off"} {
		path := filepath.Join(t.TempDir(), "lanefs")
		build := exec.Command("go", "build", "-o", path, "github.com/lanefs/lanefs/cmd/lanefs")
		build.Env = append(os.Environ(), "CGO_ENABLED=0", withRings(want))
		out, err := build.CombinedOutput()
		require.NoError(t, err, "%s", out)
		out, _ = exec.Command(path, "doctor").Output()
		line := regexp.MustCompile(`.*FUSE over io_uring.*`).FindString(string(out))
		if !strings.HasPrefix(line, "ok") {
			t.Skipf("SKIPPED: %s", line)
		}
		require.Contains(t, line, map[string]string{"on": "offered, and taken", "off": "-o io_uring=on takes it"}[want])
	}
}
