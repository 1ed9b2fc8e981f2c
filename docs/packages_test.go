package docs

import (
	"encoding/json"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// sentence is the end of one.
var sentence = regexp.MustCompile(`[.](\s|$)`)

// TestPackageComments: each package begins with what it is: a comment of two sentences or more, "Package NAME …" or "Command NAME …".
func TestPackageComments(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skipf("needs the go command, to list the packages: %v", err)
	}
	out, err := output("..", "list", "-json=Dir,ImportPath,Name,GoFiles,CgoFiles", "./...")
	require.NoError(t, err)
	seen := 0
	for d := json.NewDecoder(strings.NewReader(out)); d.More(); {
		var p struct {
			Dir, ImportPath, Name string
			GoFiles, CgoFiles     []string
		}
		require.NoError(t, d.Decode(&p))
		if len(p.GoFiles)+len(p.CgoFiles) == 0 {
			continue // tests alone
		}
		seen++
		var comments []string
		for _, name := range slices.Concat(p.GoFiles, p.CgoFiles) {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.ParseComments|parser.PackageClauseOnly)
			require.NoError(t, err)
			if f.Doc != nil {
				comments = append(comments, f.Doc.Text())
			}
		}
		path, first := strings.TrimPrefix(p.ImportPath, module), "Package "+p.Name+" "
		if p.Name == "main" {
			first = "Command " + filepath.Base(p.Dir) + " "
		}
		switch {
		case len(comments) == 0:
			t.Errorf("%s has no package comment", path)
		case len(comments) > 1:
			t.Errorf("%s has %d package comments", path, len(comments))
		case !strings.HasPrefix(comments[0], first):
			t.Errorf("%s: the package comment begins with %.30q instead of %q", path, comments[0], first)
		case len(sentence.FindAllString(comments[0], -1)) < 2:
			t.Errorf("%s: one sentence is too short for a package comment: %q", path, comments[0])
		}
	}
	require.Greater(t, seen, 40)
}
