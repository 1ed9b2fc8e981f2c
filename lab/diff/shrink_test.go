package diff

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMinimise(t *testing.T) {
	all := make([]int, 500)
	for i := range all {
		all[i] = i
	}
	forever := func() bool { return true }
	for _, need := range [][]int{{0}, {499}, {3, 4}, {17, 250, 251, 498}, all[100:110]} {
		tries := 0
		got := minimise(all, func(list []int) bool {
			tries++
			for _, n := range need {
				if !slices.Contains(list, n) {
					return false
				}
			}
			return true
		}, forever)
		require.Equal(t, need, got)
		require.Less(t, tries, 300)
	}
	left := 5
	got := minimise(all, func([]int) bool { return true }, func() bool { left--; return left >= 0 })
	require.Less(t, len(got), len(all))
	require.NotEmpty(t, got)
}

func TestRanges(t *testing.T) {
	for list, want := range map[string][]int{"7": {7}, "1,3-5,9": {1, 3, 4, 5, 9}, "0-2": {0, 1, 2}} {
		got, err := ParseRanges(list)
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Equal(t, list, ranges(got))
	}
	for _, bad := range []string{"", "a", "1,,2", "1-2-3"} {
		_, err := ParseRanges(bad)
		require.ErrorContains(t, err, "list of numbers", bad)
	}
}

// TestGenerate checks that a sequence follows from its seed alone, and that every kind of Op occurs.
func TestGenerate(t *testing.T) {
	seen := map[Kind]bool{OpRemount: true} // the run's own
	for _, p := range []Profile{ProfileData, ProfileDirect, ProfileNames, ProfileShared} {
		a := Generate(p, 5, 0, 3000)
		require.Equal(t, a, Generate(p, 5, 0, 3000))
		require.Equal(t, a[:100], Generate(p, 5, 0, 100), "a shorter sequence is the beginning of a longer one")
		require.NotEqual(t, a, Generate(p, 6, 0, 3000))
		require.NotEqual(t, a, Generate(p, 5, 1, 3000))
		for _, o := range a {
			seen[o.Kind] = true
			require.NotEmpty(t, o.String())
		}
	}
	for k := range posixOps {
		require.True(t, seen[k], "no profile makes %q", k)
	}
	require.Len(t, seen, len(posixOps)+1)
}
