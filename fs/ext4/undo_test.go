package ext4_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHandlesInOnePlace: handles of the journal are begun and undone in op.go of volume alone, so that no other place can return
// an error from under one.
func TestHandlesInOnePlace(t *testing.T) {
	files := token.NewFileSet()
	names, err := filepath.Glob("*.go")
	require.NoError(t, err)
	rooms, err := filepath.Glob("internal/*/*.go")
	require.NoError(t, err)
	names = append(names, rooms...)
	found := 0
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(files, name, nil, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				switch s.Sel.Name {
				case "Begin", "TryBegin", "Undo":
					found++
					require.Equal(t, "internal/volume/op.go", name, "%s at %s", s.Sel.Name, files.Position(s.Pos()))
				}
			}
			return true
		})
	}
	require.NotZero(t, found)
}
