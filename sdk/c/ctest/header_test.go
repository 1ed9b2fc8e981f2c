package ctest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHeader: the header says which errors each function has that can fail, and every errno that the library sets by name.
func TestHeader(t *testing.T) {
	b, err := os.ReadFile("../lanefs.h")
	require.NoError(t, err)
	header := string(b)
	declaration := regexp.MustCompile(`(?m)^(?:(?:const )?[a-z_0-9]+ )+\**(lanefs_[a-z_]+)\(.*\);$`)
	cannot := map[string]string{ // and why
		"lanefs_facts": "returns a pointer into the session", "lanefs_error": "is about errors itself", "lanefs_latest": "gives a number that no generation has after the daemon's end",
		"lanefs_sum": "is a function of its argument",
	}
	found := 0
	comment := ""
	for block := range strings.SplitSeq(header, "\n\n") { // a declaration's comment is above it, in the same paragraph or, in long ones, the one before
		for _, m := range declaration.FindAllStringSubmatch(block, -1) {
			found++
			if strings.HasPrefix(m[0], "void ") || cannot[m[1]] != "" {
				continue
			}
			require.Regexp(t, `Errors: (E[A-Z]+|none|as lanefs_)`, comment+block[:strings.Index(block, m[0])], "the comment of %s", m[1])
		}
		if i := strings.LastIndex(block, "/*"); i >= 0 || strings.HasPrefix(block, " *") {
			comment += block
		}
		if strings.Contains(block, ";") {
			comment = ""
		}
	}
	require.Greater(t, found, 25)

	sources, err := filepath.Glob("../*.c")
	require.NoError(t, err)
	set := regexp.MustCompile(`lanefs_fail\((?:[a-z= ?0-9]+ )?(E[A-Z]+)`)
	for _, path := range sources {
		source, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, m := range set.FindAllStringSubmatch(string(source), -1) {
			require.Regexp(t, `\b`+m[1]+`\b`, header, "%s sets it", path)
		}
	}
}
