package ext4

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHandlesInOnePlace: handles of the journal are begun and undone in op.go alone, so that no other place can return an error
// from under one.
func TestHandlesInOnePlace(t *testing.T) {
	files := token.NewFileSet()
	pkgs, err := parser.ParseDir(files, ".", nil, 0)
	require.NoError(t, err)
	found := 0
	for name, file := range pkgs["ext4"].Files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				switch s.Sel.Name {
				case "Begin", "TryBegin", "Undo":
					found++
					require.Equal(t, "op.go", name, "%s at %s", s.Sel.Name, files.Position(s.Pos()))
				}
			}
			return true
		})
	}
	require.NotZero(t, found)
}
