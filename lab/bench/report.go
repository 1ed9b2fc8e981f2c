package main

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// report prints the tables.
func (b *bench) report(systems []*system, rows []row) error {
	fmt.Printf("LaneFS with the software controller (lanes on CPU threads, but for columns with gpu=). Images of 2 GiB in %s, 4 KiB blocks; %d CPUs; medians of %d runs.\n",
		b.where, runtime.NumCPU(), b.runs)
	b.show("Results", b.results.table(systems, rows))
	for _, s := range systems {
		if s.kind == lanefs && slices.ContainsFunc(systems, func(o *system) bool { return o.kind != lanefs }) {
			b.show(fmt.Sprintf("How many times as fast as others %s is; its share of null", s.name), b.results.ratios(s, systems, rows))
		}
	}
	b.show("CPU time of the daemon for each operation in µs; its context switches for each operation", b.results.costs(systems, rows))
	if b.json == "" {
		return nil
	}
	return b.results.write(b.json, rows)
}

func (b *bench) show(title string, t *table) {
	text := t.terminal()
	if b.markdown {
		text = t.markdown()
	}
	fmt.Printf("\n%s\n\n%s", title, text)
}

// missing is the cell of what was not measured.
const missing = "-"

func number(v float64) string {
	switch {
	case v < 10:
		return strconv.FormatFloat(v, 'f', 3, 64)
	case v < 100:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	s := strconv.FormatFloat(v, 'f', 0, 64)
	var parts []string
	for ; len(s) > 3; s = s[:len(s)-3] {
		parts = append([]string{s[len(s)-3:]}, parts...)
	}
	return strings.Join(append([]string{s}, parts...), ",")
}

// lines makes a table of a cell for each row and system.
func lines(head string, systems []*system, rows []row, title func(*system) string, cell func(row, *system) string) *table {
	t := &table{head: []string{head}}
	for _, s := range systems {
		t.head = append(t.head, title(s))
	}
	for _, r := range rows {
		cells := []string{r.name + ", " + r.unit}
		for _, s := range systems {
			cells = append(cells, cell(r, s))
		}
		t.add(cells...)
	}
	return t
}

func (r results) table(systems []*system, rows []row) *table {
	return lines("", systems, rows, func(s *system) string { return s.name }, func(row row, s *system) string {
		if v, ok := r.median(row.name, s.name, figure.value); ok && !(row.ofDaemon && s.kind == kernel) {
			return number(v)
		}
		return missing
	})
}

// ratios compares a LaneFS with what is not one.
func (r results) ratios(one *system, systems []*system, rows []row) *table {
	var others []*system
	for _, s := range systems {
		if s.kind != lanefs {
			others = append(others, s)
		}
	}
	return lines("", others, rows, func(s *system) string { return s.name }, func(row row, s *system) string {
		a, has1 := r.median(row.name, one.name, figure.value)
		v, has2 := r.median(row.name, s.name, figure.value)
		switch {
		case !has1 || !has2 || a == 0 || v == 0 || row.ofDaemon && s.kind == kernel:
			return missing
		case s.kind == null:
			return fmt.Sprintf("%.0f %%", 100*row.times(a, v))
		}
		return fmt.Sprintf("%.2f×", row.times(a, v))
	})
}

// costs are the daemons' CPU time and context switches. The kernel's ext4 has no daemon.
func (r results) costs(systems []*system, rows []row) *table {
	return lines("", systems, rows, func(s *system) string { return s.name }, func(row row, s *system) string {
		cpu, ok := r.median(row.name, s.name, figure.cpu)
		n, _ := r.median(row.name, s.name, figure.switched)
		if !ok || s.kind == kernel || row.ofDaemon {
			return missing
		}
		return fmt.Sprintf("%.1f; %.2f", cpu, n)
	})
}
