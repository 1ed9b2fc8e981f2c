package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// path is a name in backquotes that begins with one of the module's folders.
var path = regexp.MustCompile("`((?:blockdev|cmd|docs|fs|gpu|kernels|lab|nvmeq|sdk|\\.ci)/[A-Za-z0-9_./-]+)`")

// TestPaths: every file and folder of the module that the documents name is there.
func TestPaths(t *testing.T) {
	pages, err := filepath.Glob("*.md")
	require.NoError(t, err)
	seen := 0
	for _, page := range append(pages, "../README.md") {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, m := range path.FindAllSubmatch(text, -1) {
			seen++
			if _, err := os.Stat(filepath.Join("..", strings.TrimSuffix(string(m[1]), "/"))); err != nil {
				t.Errorf("%s names %s: %v", page, m[1], err)
			}
		}
	}
	require.Greater(t, seen, 20)
}
