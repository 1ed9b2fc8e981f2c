package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
)

// A document has the figures of earlier runs between two marks: a table for each machine, and what of the aims they reach. They are
// made of the JSON files of those runs, in the order in which they are given.

const (
	figuresBegin = "<!-- figures: make bench prints them, bench -document puts them here -->\n"
	figuresEnd   = "<!-- end of figures -->\n"
)

// document puts the figures of JSON files into a document, between its marks.
func document(path string, from ...string) error {
	if len(from) == 0 {
		return fmt.Errorf("-document needs the JSON files of earlier runs as arguments")
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(text), figuresBegin)
	_, after, ended := strings.Cut(rest, figuresEnd)
	if !found || !ended {
		return fmt.Errorf("%s has no marks for figures", path)
	}
	var machines [][]line
	var b strings.Builder
	for k, name := range from {
		all, err := readLines(name)
		if err != nil {
			return err
		}
		machines = append(machines, all)
		if len(from) > 1 {
			fmt.Fprintf(&b, "\nMachine %d:\n", k+1)
		}
		b.WriteString("\n" + sideBySide(all).markdown())
	}
	b.WriteString("\nThe aims and, after a colon, what there is; what is missed is bold.\n\n" + aimed(machines).markdown())
	return os.WriteFile(path, []byte(before+figuresBegin+b.String()+"\n"+figuresEnd+after), 0o644)
}

// readLines reads the figures of an earlier run.
func readLines(path string) (all []line, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return all, nil
}

// median is that of a system's figures.
func (l line) median(system string, of func(figure) float64) (float64, bool) {
	return results{l.Row: l.Figures}.median(l.Row, l.column(system), of)
}

// against says how many times as fast LaneFS is as a system.
func (l line) against(system string) (float64, bool) {
	one, has := l.median("lanefs", figure.value)
	other, ok := l.median(system, figure.value)
	if !has || !ok || one == 0 || other == 0 {
		return 0, false
	}
	return row{lessIsBetter: l.LessIsBetter}.times(one, other), true
}

// byDevice is LaneFS with requests by /dev/fuse, where a run has it beside the transport that a mount takes by itself.
const byDevice = "lanefs io_uring=off"

// sideBySide is a machine's table. The factors and the costs are those of LaneFS's first column.
func sideBySide(all []line) *table {
	version := fuse2fs
	for _, l := range all {
		if name := l.column(fuse2fs); name != "" {
			version = name
			break
		}
	}
	columns := []struct{ system, head string }{{lanefs, "LaneFS"}, {byDevice, "by /dev/fuse"}, {null, "null"}, {fuse2fs, version}, {kernel, "kernel"}}
	if !slices.ContainsFunc(all, func(l line) bool { return l.column(byDevice) == byDevice && l.column(lanefs) != byDevice }) {
		columns = slices.Delete(columns, 1, 2)
	}
	t := &table{head: []string{""}}
	for _, c := range columns {
		t.head = append(t.head, c.head)
	}
	t.head = append(t.head, "× fuse2fs", "× kernel", "of null", "CPU µs; switches, an operation")
	for _, l := range all {
		cells := []string{l.Row + ", " + l.Unit}
		for _, c := range columns {
			if v, ok := l.median(c.system, figure.value); ok {
				cells = append(cells, number(v))
			} else {
				cells = append(cells, missing)
			}
		}
		for _, s := range []string{fuse2fs, kernel, null} {
			cells = append(cells, ratio(s, l))
		}
		cpu, _ := l.median(lanefs, figure.cpu)
		switches, _ := l.median(lanefs, figure.switched)
		if cpu == 0 {
			cells = append(cells, missing)
		} else {
			cells = append(cells, fmt.Sprintf("%.0f; %.1f", cpu, switches))
		}
		t.add(cells...)
	}
	return t
}

func ratio(system string, l line) string {
	v, ok := l.against(system)
	switch {
	case !ok:
		return missing
	case system == "null":
		return fmt.Sprintf("%.0f %%", 100*v)
	}
	return fmt.Sprintf("%.2f×", v)
}
