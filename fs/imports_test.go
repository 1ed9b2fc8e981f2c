package fs

import (
	"go/build"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestImports: fs imports package ext4 but none of the packages beneath it. Its tests may import test helpers there.
func TestImports(t *testing.T) {
	p, err := build.ImportDir(".", 0)
	require.NoError(t, err)
	beneath := func(path string) bool { return strings.HasPrefix(path, "github.com/lanefs/lanefs/fs/ext4/") }
	for _, path := range p.Imports {
		require.False(t, beneath(path), "fs imports %s", path)
	}
	for _, path := range slices.Concat(p.TestImports, p.XTestImports) {
		require.False(t, beneath(path) && !strings.HasSuffix(path, "test"), "a test of fs imports %s", path)
	}
	require.Contains(t, p.Imports, "github.com/lanefs/lanefs/fs/ext4")
}
