package lab

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/lanefs/lanefs/"

// listed is what go list says of a package. Imports leaves out those of its tests.
type listed struct {
	ImportPath string
	Imports    []string
}

// inLab reports whether the package of an import path belongs to the lab.
func inLab(path string) bool {
	return path == module+"lab" || strings.HasPrefix(path, module+"lab/")
}

// importsOfLab returns "IMPORTER imports IMPORTED" for each import of a lab package by a package for which product is true.
func importsOfLab(packages []listed, product func(path string) bool) []string {
	var found []string
	for _, p := range packages {
		if !product(p.ImportPath) {
			continue
		}
		for _, i := range p.Imports {
			if inLab(i) {
				found = append(found, strings.TrimPrefix(p.ImportPath, module)+" imports "+strings.TrimPrefix(i, module))
			}
		}
	}
	return found
}

// TestProductImportsNoLab: no package outside of lab imports one of lab, apart from its tests.
func TestProductImportsNoLab(t *testing.T) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./...")
	cmd.Dir = ".."
	out, err := cmd.Output()
	require.NoError(t, err)
	var packages []listed
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		packages = append(packages, p)
	}
	require.Empty(t, importsOfLab(packages, func(path string) bool { return !inLab(path) }))

	// The same look finds the imports that the lab has of itself: it sees every package.
	require.Contains(t, importsOfLab(packages, inLab), "lab/iofault imports lab/diff")
}
