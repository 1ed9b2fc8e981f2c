package lanefs_test

import (
	"go/build"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestImports: a program that imports the SDK gets the protocol and the interface of GPU runtimes, and no kernels and nothing else of the
// daemon.
func TestImports(t *testing.T) {
	const module = "github.com/lanefs/lanefs/"
	allowed := map[string]bool{"fs/share/wire": true, "gpu": true}
	dirs := []string{"."}
	for path := range allowed {
		dirs = append(dirs, "../../"+path)
	}
	for _, dir := range dirs {
		p, err := build.ImportDir(dir, 0)
		require.NoError(t, err)
		for _, path := range p.Imports {
			if own, ok := strings.CutPrefix(path, module); ok {
				require.True(t, allowed[own], "%s imports %s", dir, path)
			}
		}
	}
}
