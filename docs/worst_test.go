package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWorst: each line of what a client can do at worst names tests, and they are there.
func TestWorst(t *testing.T) {
	spec, err := os.ReadFile("SPEC.md")
	require.NoError(t, err)
	_, part, found := strings.Cut(string(spec), "### What a client can do at worst\n")
	require.True(t, found)
	tests := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	for _, root := range []string{"../fs/share", "../cmd/lanefs", "../lab/attack", "../nvmeq/softctl"} {
		require.NoError(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			b, err := os.ReadFile(path)
			for _, m := range declared.FindAllSubmatch(b, -1) {
				tests[string(m[1])] = true
			}
			return err
		}))
	}
	lines := 0
	named := regexp.MustCompile("`((?:Test|Fuzz)\\w+)`")
	for line := range strings.Lines(part) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| what the client does") {
			continue
		}
		lines++
		all := named.FindAllStringSubmatch(line, -1)
		require.NotEmpty(t, all, line)
		for _, m := range all {
			require.True(t, tests[m[1]], "%s, of which SPEC.md speaks, does not exist", m[1])
		}
	}
	require.Greater(t, lines, 10)
}
