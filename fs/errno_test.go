package fs

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4"
)

func TestErrno(t *testing.T) {
	require.Zero(t, toErrno(nil))
	require.Equal(t, syscall.EIO, toErrno(errors.New("anything")))
	for _, e := range errnos {
		require.Equal(t, e.errno, toErrno(fmt.Errorf("wrapped: %w", e.err)), "%v", e.err)
	}
}

// TestErrnoComplete: every error that package ext4 exports has its line in the table.
func TestErrnoComplete(t *testing.T) {
	listed := names(t, "errno.go", func(n ast.Node) string {
		if s, ok := n.(*ast.SelectorExpr); ok && fmt.Sprint(s.X) == "ext4" {
			return s.Sel.Name
		}
		return ""
	})
	files, err := filepath.Glob("ext4/*.go")
	require.NoError(t, err)
	var exported []string
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		exported = append(exported, names(t, file, func(n ast.Node) string {
			if v, ok := n.(*ast.ValueSpec); ok && len(v.Names) == 1 {
				return v.Names[0].Name
			}
			return ""
		})...)
	}
	require.Contains(t, exported, "ErrCorrupt")
	require.ElementsMatch(t, exported, listed)
}

// names collects the names of errors: those that begin with Err and a capital.
func names(t *testing.T, file string, pick func(ast.Node) string) []string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	require.NoError(t, err)
	var found []string
	ast.Inspect(f, func(n ast.Node) bool {
		if name := pick(n); len(name) > 3 && name[:3] == "Err" && unicode.IsUpper(rune(name[3])) {
			found = append(found, name)
		}
		return true
	})
	return found
}

func TestErrorLog(t *testing.T) {
	var log logLines
	l := errorLog{log: log.logger()}
	for i := range 3 * maxLogged {
		l.report("read", 12, fmt.Errorf("block %d: %w", i/2, ext4.ErrCorrupt))
	}
	require.Len(t, log.lines, maxLogged)
	require.Contains(t, log.lines[0], `request=read inode=12 error="block 0: structure needs cleaning"`)
}
