package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
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

// source is the name of a source file in the comment of a package.
var source = regexp.MustCompile(`[A-Za-z0-9_/]+\.(?:go|h|hip)\b`)

// TestFlows: every source file that a package's comment names is there. The flows of requests in these comments name many.
func TestFlows(t *testing.T) {
	var files []string
	require.NoError(t, filepath.WalkDir("..", func(name string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && source.MatchString(name) {
			files = append(files, name)
		}
		return err
	}))
	seen := 0
	for _, name := range files {
		if filepath.Base(name) != "doc.go" {
			continue
		}
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, m := range source.FindAllString(string(text), -1) {
			seen++
			if strings.HasPrefix(m, "linux/") || strings.HasPrefix(m, "include/uapi/") {
				continue // a header of Linux
			}
			if !slices.ContainsFunc(files, func(f string) bool { return strings.HasSuffix(f, "/"+m) }) {
				t.Errorf("%s names %s, which is not there", name, m)
			}
		}
	}
	require.Greater(t, seen, 30)
}
