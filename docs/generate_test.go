package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGenerated: the committed pictures and sections are what `make docs` makes of the code as it is.
func TestGenerated(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skipf("needs the go command, to list the packages: %v", err)
	}
	files, err := Generate("..")
	require.NoError(t, err)
	for path, want := range files {
		got, err := os.ReadFile(filepath.Join("..", path))
		require.NoError(t, err, "make docs draws it")
		require.Equal(t, want, string(got), "%s is not what the code says: make docs", path)
	}
	for _, name := range []string{"docs/rooms.svg", "docs/read.svg", "docs/DESIGN.md"} {
		require.Contains(t, files, name)
	}
}

// TestFill: what stands between two markers is replaced, and nothing else.
func TestFill(t *testing.T) {
	sections := map[string]string{"x": "new\n"}
	got, err := fill("..", "a\n<!-- generated: x -->\nold\n<!-- end: x -->\nb\n", sections)
	require.NoError(t, err)
	require.Equal(t, "a\n<!-- generated: x -->\n```\nnew\n```\n<!-- end: x -->\nb\n", got)
	_, err = fill("..", "<!-- generated: x -->\n<!-- end: y -->\n", sections)
	require.ErrorContains(t, err, `section "x" ends as "y"`)
	_, err = fill("..", "<!-- generated: y -->\n<!-- end: y -->\n", sections)
	require.ErrorContains(t, err, "no such generator")
}
