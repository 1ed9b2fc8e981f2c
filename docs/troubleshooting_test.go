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

// TestTroubleshooting: each message is in the program's source.
func TestTroubleshooting(t *testing.T) {
	text, err := os.ReadFile("TROUBLESHOOTING.md")
	require.NoError(t, err)
	var source strings.Builder
	require.NoError(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && (name == "lab" || name == "build" || strings.HasPrefix(name, ".git")) {
			return filepath.SkipDir
		}
		if strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			source.WriteString(strings.ReplaceAll(string(b), `\"`, `"`))
		}
		return nil
	}))
	messages := regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(string(text), -1)
	require.Greater(t, len(messages), 15)
	for _, m := range messages {
		require.Contains(t, source.String(), m[1])
	}
}
