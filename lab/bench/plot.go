package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"math"
	"os"
	"strings"
)

// line is one row of the JSON file.
type line struct {
	Row          string              `json:"row"`
	Unit         string              `json:"unit"`
	LessIsBetter bool                `json:"less_is_better,omitempty"`
	Figures      map[string][]figure `json:"figures"` // by system, one a run
}

// plot draws figures of earlier runs, one JSON file of -json or document with tables a machine, as an SVG picture: how many times as fast as fuse2fs LaneFS and
// the kernel's ext4 are, on a logarithmic scale.
func plot(to string, from ...string) error {
	if len(from) == 0 {
		return errors.New("-svg needs the JSON files of earlier runs, or a document with their tables, as arguments")
	}
	p := picture{rows: map[string][]point{}}
	for machine, path := range from {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var all []line
		if strings.HasSuffix(path, ".md") {
			all = readTables(string(b))
		} else if err := json.Unmarshal(b, &all); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		seen := map[string]int{}
		for _, l := range all {
			p.add(l, machine+seen[l.Row])
			seen[l.Row]++ // a document has a table for each machine
		}
	}
	if len(p.order) == 0 {
		return fmt.Errorf("%s: no row has figures of LaneFS and of fuse2fs", strings.Join(from, ", "))
	}
	return os.WriteFile(to, []byte(p.svg()), 0o644)
}

// point is one system's speed in one row, relative to fuse2fs.
type point struct {
	lanefs  bool
	machine int
	times   float64
}

type picture struct {
	order    []string // names of rows
	rows     map[string][]point
	machines int
}

// column is a system's column: of several the one with the shortest name, which is the default's. fuse2fs has its version behind its name.
func (l line) column(system string) (name string) {
	for s := range l.Figures {
		if strings.HasPrefix(s, system) && (name == "" || len(s) < len(name)) {
			name = s
		}
	}
	return name
}

// add takes a row that has figures of both.
func (p *picture) add(l line, machine int) {
	r := results{l.Row: l.Figures}
	base, ok := r.median(l.Row, l.column("fuse2fs"), figure.value)
	one, has := r.median(l.Row, l.column("lanefs"), figure.value)
	if !ok || !has || base == 0 || one == 0 {
		return
	}
	if p.rows[l.Row] == nil {
		p.order = append(p.order, l.Row)
	}
	p.machines = max(p.machines, machine+1)
	times := row{lessIsBetter: l.LessIsBetter}.times
	p.rows[l.Row] = append(p.rows[l.Row], point{true, machine, times(one, base)})
	if other, ok := r.median(l.Row, "kernel", figure.value); ok && other > 0 {
		p.rows[l.Row] = append(p.rows[l.Row], point{false, machine, times(other, base)})
	}
}

const (
	plotLeft, plotWidth = 300, 460
	plotTop, plotRow    = 58, 24
)

func (p *picture) svg() string {
	low, high := 1.0, 1.0
	for _, points := range p.rows {
		for _, pt := range points {
			low, high = min(low, pt.times), max(high, pt.times)
		}
	}
	from, to := math.Floor(math.Log2(low)), math.Ceil(math.Log2(high))
	to = max(to, from+1)
	x := func(times float64) float64 { return plotLeft + (math.Log2(times)-from)/(to-from)*plotWidth }
	height := plotTop + plotRow*len(p.order) + 40
	var b strings.Builder
	fmt.Fprintf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%[1]d\" height=\"%[2]d\" role=\"img\">\n", plotLeft+plotWidth+40, height)
	b.WriteString("  <title>How many times as fast as fuse2fs LaneFS and the kernel's ext4 are, for each kind of work</title>\n" + plotStyle)
	fmt.Fprintf(&b, "  <circle class=\"lanefs\" cx=\"%d\" cy=\"16\" r=\"5\"/><text x=\"%d\" y=\"20\">LaneFS</text>\n", plotLeft, plotLeft+12)
	fmt.Fprintf(&b, "  <circle class=\"kernel\" cx=\"%d\" cy=\"16\" r=\"5\"/><text x=\"%d\" y=\"20\">the kernel's ext4 on a loop device</text>\n", plotLeft+90, plotLeft+102)
	bottom := plotTop + plotRow*len(p.order) - plotRow/2
	for e := from; e <= to; e++ {
		at, class := x(math.Exp2(e)), "grid"
		if e == 0 {
			class = "one"
		}
		fmt.Fprintf(&b, "  <line class=\"%s\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1[2]f\" y2=\"%[4]d\"/>\n", class, at, plotTop-plotRow/2-4, bottom+4)
		label := fmt.Sprintf("%g×", math.Exp2(e))
		if e < 0 {
			label = fmt.Sprintf("1/%g", math.Exp2(-e))
		}
		fmt.Fprintf(&b, "  <text class=\"small\" x=\"%.1f\" y=\"%d\">%s</text>\n", at, bottom+20, label)
	}
	fmt.Fprintf(&b, "  <text class=\"small\" x=\"%.1f\" y=\"%d\">times as fast as fuse2fs; further right is faster</text>\n", float64(plotLeft+plotWidth/2), bottom+36)
	for i, name := range p.order {
		y := plotTop + plotRow*i
		fmt.Fprintf(&b, "  <text class=\"row\" x=\"%d\" y=\"%d\">%s</text>\n", plotLeft-16, y+4, html.EscapeString(name))
		for _, lane := range []bool{false, true} { // LaneFS above
			for _, pt := range p.rows[name] {
				if pt.lanefs != lane {
					continue
				}
				who, class := "the kernel's ext4", "kernel"
				if pt.lanefs {
					who, class = "LaneFS", "lanefs"
				}
				machine := ""
				if p.machines > 1 {
					machine = fmt.Sprintf(", machine %d", pt.machine+1)
				}
				fmt.Fprintf(&b, "  <circle class=\"%s\" cx=\"%.1f\" cy=\"%d\" r=\"5\"><title>%s: %s%s: %.2f×</title></circle>\n",
					class, x(pt.times), y, html.EscapeString(name), who, machine, pt.times)
			}
		}
	}
	b.WriteString("</svg>\n")
	return b.String()
}

const plotStyle = `  <style>
    text { font: 12px ui-sans-serif, system-ui, "DejaVu Sans", sans-serif; fill: #1f2328 }
    .row { text-anchor: end }
    .small { font-size: 11px; fill: #59636e; text-anchor: middle }
    .grid { stroke: #d1d9e0 }
    .one { stroke: #59636e; stroke-width: 1.5 }
    .lanefs { fill: #0969da }
    .kernel { fill: none; stroke: #59636e; stroke-width: 1.5 }
    @media (prefers-color-scheme: dark) {
      text { fill: #f0f6fc }
      .small { fill: #9198a1 }
      .grid { stroke: #3d444d }
      .one { stroke: #9198a1 }
      .lanefs { fill: #4493f8 }
      .kernel { stroke: #9198a1 }
    }
  </style>
`
