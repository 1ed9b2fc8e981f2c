package main

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// shown is a name, as of a path or a drive, for a line that people read. One with control characters, which a terminal would obey, and which could look like a line of its own, is
// quoted as in Go.
func shown(name string) string {
	if !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(name)
	}
	return name
}
