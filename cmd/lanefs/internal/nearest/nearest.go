// Package nearest guesses what a mistyped name means: of the names that there are, the one from which it differs by the fewest letters,
// if they are few. Commands and mount options are looked up by it when they are not known, for the error.
package nearest

import "strings"

// tooLong is more than any name that is looked for has.
const tooLong = 32

// Of is the name that is meant most likely, empty if none is near.
func Of(typed string, names []string) string {
	if len(typed) > tooLong {
		return ""
	}
	best, at := "", 3
	if len(typed) < 5 { // in a short name two mistakes leave little of it
		at = 2
	}
	for _, name := range names {
		if d := distance(strings.ToLower(typed), name); d < at && d < len(name)-1 {
			best, at = name, d
		}
	}
	return best
}

// distance counts the letters that have to be put in, left out, changed or exchanged with their neighbour to make b of a
// (the optimal string alignment distance).
func distance(a, b string) int {
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		d[i][0] = i
	}
	for j := range d[0] {
		d[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			d[i][j] = min(d[i-1][j]+1, d[i][j-1]+1, d[i-1][j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}
