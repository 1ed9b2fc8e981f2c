package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOthers: each test is run by one of four seeds, about as many by each, and none of those that are left out anyway. Which cases of a test the seed takes does not matter.
func TestOthers(t *testing.T) {
	names := []string{"TestSkipped", "TestPartly"}
	for k := range 100 {
		names = append(names, fmt.Sprint("TestNumber", k))
	}
	const skip = "^Test(Skipped|Else)$|^TestPartly$/^part$"
	runs := func(skip string, seed int) (run []string) {
		left, of := others(names, skip, strconv.Itoa(seed))
		for _, name := range names {
			if !slices.Contains(left, name) && (skip == "" || name != "TestSkipped") {
				run = append(run, name)
			}
		}
		require.Len(t, run, of-len(left))
		return run
	}
	for skip, all := range map[string][]string{skip: names[1:], "": names} {
		var together []string
		for turn := range 4 {
			seed := 1000 + turn*256
			one := runs(skip, seed)
			require.InDelta(t, len(all)/4, len(one), 15)
			together = append(together, one...)
			for other := seed; other < seed+12; other++ { // other cases
				require.Equal(t, one, runs(skip, other))
			}
		}
		require.ElementsMatch(t, all, together)
	}
	none, _ := others(names, skip, "as before")
	require.Empty(t, none)
}

// TestTestsIn: of a package's files those that this machine builds, tests only, each once.
func TestTestsIn(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":          "module m\n\ngo 1.24\n",
		"m.go":            "package m\n\nfunc TestNo(t *testing.T) {}\n",
		"m_test.go":       "package m\n\nfunc TestMain(m *testing.M) {}\n\nfunc TestA(t *testing.T) {}\nfunc Test2(tt *testing.T) {}\nfunc Testing(t *testing.T) {}\nfunc TestHelp(t testing.TB) {}\nfunc BenchmarkA(b *testing.B) {}\n",
		"x_test.go":       "package m_test\n\nfunc TestX(t *testing.T) { t.Run(\"TestPart\", nil) }\nfunc TestA(t *testing.T) {}\n",
		"m_plan9_test.go": "package m\n\nfunc TestElsewhere(t *testing.T) {}\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	t.Chdir(dir)
	t.Setenv("GOFLAGS", "")
	names, err := testsIn("go", []string{"."})
	require.NoError(t, err)
	require.Equal(t, []string{"Test2", "TestA", "TestX"}, names)
	none, err := testsIn("go", nil)
	require.NoError(t, err)
	require.Empty(t, none)
	_, err = testsIn("go", []string{"./nothing"})
	require.Error(t, err)
}
