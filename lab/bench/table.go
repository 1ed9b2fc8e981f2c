package main

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// table is what is printed: lines of as many cells as head has, or fewer.
type table struct {
	head  []string
	lines [][]string
}

func (t *table) add(cells ...string) { t.lines = append(t.lines, cells) }

// terminal aligns the columns: the first to the left, the others to the right.
func (t *table) terminal() string {
	width := make([]int, len(t.head))
	for _, l := range append([][]string{t.head}, t.lines...) {
		for i, c := range l {
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	var b strings.Builder
	for _, l := range append([][]string{t.head}, t.lines...) {
		for i, c := range l {
			if i == 0 {
				fmt.Fprintf(&b, "%-*s", width[i], c)
			} else {
				fmt.Fprintf(&b, "  %*s", width[i], c)
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// markdown is the table as PERFORMANCE.md has it.
func (t *table) markdown() string {
	var b strings.Builder
	line := func(cells []string) { b.WriteString("| " + strings.Join(cells, " | ") + " |\n") }
	line(t.head)
	b.WriteString(strings.Repeat("|---", len(t.head)) + "|\n")
	for _, l := range t.lines {
		line(l)
	}
	return b.String()
}
