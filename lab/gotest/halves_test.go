package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOtherHalf: each test is left out by one of two seeds, about as many by each, and none of those that are left out anyway. Which cases of a test the seed takes does not matter.
func TestOtherHalf(t *testing.T) {
	names := []string{"TestSkipped", "TestPartly"}
	for k := range 100 {
		names = append(names, fmt.Sprint("TestNumber", k))
	}
	const skip = "^Test(Skipped|Else)$|^TestPartly$/^part$"
	one, of := otherHalf(names, skip, "1000")
	other, also := otherHalf(names, skip, "1256")
	require.Equal(t, []int{101, 101}, []int{of, also})
	require.ElementsMatch(t, names[1:], append(one, other...))
	require.InDelta(t, len(one), len(other), 40)
	for seed := 1000; seed < 1012; seed++ { // other cases
		again, _ := otherHalf(names, skip, strconv.Itoa(seed))
		require.Equal(t, one, again)
	}
	one, _ = otherHalf(names, "", "7")
	other, of = otherHalf(names, "", "263")
	require.Len(t, names, of)
	require.ElementsMatch(t, names, append(one, other...))
	none, _ := otherHalf(names, skip, "as before")
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
