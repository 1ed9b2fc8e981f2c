package bench

import (
	"fmt"
	"html"
	"math"
	"strings"
	"time"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/units"
)

const (
	svgName   = 420 // what a line is of
	svgBar    = 220 // commands a second
	svgLat    = 360 // latencies, on a logarithmic scale
	svgGap    = 40
	svgTop    = 76
	svgHeight = 30
)

const svgStyle = `  <style>
    text { font: 12px ui-sans-serif, system-ui, "DejaVu Sans", sans-serif; fill: #1f2328 }
    .row { text-anchor: end }
    .small { font-size: 11px; fill: #59636e }
    .mid { text-anchor: middle }
    .grid { stroke: #d1d9e0 }
    .bar { fill: #0969da }
    .fio { fill: #818b98 }
    .span { stroke: #818b98; stroke-width: 2 }
    .bad { fill: #d1242f }
    .s0 { fill: #0969da } .s1 { fill: #8250df } .s2 { fill: #bf3989 } .s3 { fill: #9a6700 } .s4 { fill: #1a7f37 }
    @media (prefers-color-scheme: dark) {
      text { fill: #f0f6fc }
      .small { fill: #9198a1 }
      .grid { stroke: #3d444d }
      .bar { fill: #4493f8 }
    }
  </style>
`

// SVG draws the report: for each measurement commands a second, and the latencies from p50 to p99.99; then the steps, where they were
// measured, as parts of the mean.
func (r *Report) SVG() string {
	var most float64
	low, high := time.Duration(math.MaxInt64), time.Duration(1)
	var steps []*Line
	for _, l := range r.Runs {
		most = max(most, l.IOPS)
		for _, t := range []*Times{l.Read, l.Write} {
			if t != nil {
				low, high = min(low, max(t.P50, 1)), max(high, t.P9999)
			}
		}
		if len(l.Steps) > 0 {
			steps = append(steps, l)
		}
	}
	from, to := 0.0, 1.0
	if low < math.MaxInt64 {
		from, to = math.Floor(math.Log10(float64(low))), math.Ceil(math.Log10(float64(high)))
	}
	to = max(to, from+1)
	latAt := float64(svgName + svgBar + 2*svgGap)
	x := func(d time.Duration) float64 {
		return latAt + (math.Log10(float64(max(d, 1)))-from)/(to-from)*svgLat
	}
	width := svgName + svgBar + svgLat + 3*svgGap
	var b strings.Builder
	y := svgTop
	bottom := svgTop + svgHeight*len(r.Runs)
	for e := from; e <= to; e++ {
		at := x(time.Duration(math.Pow(10, e)))
		fmt.Fprintf(&b, "  <line class=\"grid\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1[1]f\" y2=\"%d\"/>\n", at, svgTop-14, bottom-8)
		fmt.Fprintf(&b, "  <text class=\"small mid\" x=\"%.1f\" y=\"%d\">%s</text>\n", at, bottom+8, units.Duration(time.Duration(math.Pow(10, e))))
	}
	for _, l := range r.Runs {
		r.row(&b, l, y, most, x)
		y += svgHeight
	}
	fmt.Fprintf(&b, "  <text class=\"small mid\" x=\"%d\" y=\"%d\">commands a second</text>\n", svgName+svgBar/2, bottom+8)
	fmt.Fprintf(&b, "  <text class=\"small mid\" x=\"%.1f\" y=\"%d\">latency of a command: p50, p90, p99, p99.9, p99.99; the upper row reads, the lower writes</text>\n", latAt+svgLat/2, bottom+24)
	y = bottom + 56
	if len(steps) > 0 {
		y = drawSteps(&b, steps, y)
	}
	title := fmt.Sprintf("lanefs bench of %s: %s", r.Device, r.Model)
	head := fmt.Sprintf("  <text x=\"16\" y=\"24\">%s</text>\n  <text class=\"small\" x=\"16\" y=\"42\">%s</text>\n", html.EscapeString(title), html.EscapeString(r.caption()))
	return fmt.Sprintf("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%[1]d\" height=\"%[2]d\" role=\"img\">\n  <title>%s</title>\n%s%s%s</svg>\n",
		width, y+8, html.EscapeString(title), svgStyle, head, b.String())
}

// caption is what has to be known of all measurements.
func (r *Report) caption() string {
	s := fmt.Sprintf("lanes on %s; %s", r.Lanes, r.When.Format(time.DateTime))
	if r.Simulated {
		s = "SIMULATED: the controller is software; " + s
	}
	if r.Interrupted {
		s += "; interrupted"
	}
	return s
}

// row draws one measurement.
func (r *Report) row(b *strings.Builder, l *Line, y int, most float64, x func(time.Duration) float64) {
	class, kind := "bar", map[int]string{0: "write", 100: "read"}[l.Reads]
	if kind == "" {
		kind = fmt.Sprintf("%d %% read", l.Reads)
	}
	what := fmt.Sprintf("%s %s %s, %d × %d", units.Bytes(l.Block), l.Order, kind, l.Lanes, l.Depth)
	if l.Doorbell != "" {
		what += fmt.Sprintf(", batch %d, mode %d, %s", l.Batch, l.MemoryMode, l.Doorbell)
	} else {
		class = "fio"
		what += ", fio"
	}
	fmt.Fprintf(b, "  <text class=\"row\" x=\"%d\" y=\"%d\">%s<title>%s</title></text>\n", svgName-12, y+4, html.EscapeString(what), html.EscapeString(l.String()))
	if l.Refused != "" {
		fmt.Fprintf(b, "  <text class=\"small\" x=\"%d\" y=\"%d\">not measured<title>%s</title></text>\n", svgName, y+4, html.EscapeString(l.Refused))
		return
	}
	n := 0.0
	if most > 0 {
		n = l.IOPS / most * svgBar
	}
	fmt.Fprintf(b, "  <rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"14\"/>\n", class, svgName, y-7, n)
	note := fmt.Sprintf("%.0f", l.IOPS)
	if l.Wrong > 0 || l.Failed > 0 {
		note += fmt.Sprintf(", %d wrong, %d failed", l.Wrong, l.Failed)
	}
	fmt.Fprintf(b, "  <text class=\"small\" x=\"%.1f\" y=\"%d\">%s</text>\n", svgName+n+4, y+4, note)
	at := y - 5
	for _, t := range []*Times{l.Read, l.Write} {
		if t != nil {
			fmt.Fprintf(b, "  <line class=\"span\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%[2]d\"/>\n", x(t.P50), at, x(t.P9999))
			for _, q := range []struct {
				name string
				d    time.Duration
			}{{"p50", t.P50}, {"p90", t.P90}, {"p99", t.P99}, {"p99.9", t.P999}, {"p99.99", t.P9999}} {
				fmt.Fprintf(b, "  <circle class=\"%s\" cx=\"%.1f\" cy=\"%d\" r=\"3\"><title>%s %s</title></circle>\n", class, x(q.d), at, q.name, units.Duration(q.d))
			}
		}
		at += 10
	}
}

// drawSteps draws the mean of each step, all measurements to one scale, and returns where it ends.
func drawSteps(b *strings.Builder, lines []*Line, y int) int {
	longest := time.Duration(1)
	for _, l := range lines {
		sum := time.Duration(0)
		for _, s := range l.Steps {
			sum += s.Mean
		}
		longest = max(longest, sum)
	}
	at := svgName
	for i, name := range StepNames {
		fmt.Fprintf(b, "  <rect class=\"s%d\" x=\"%d\" y=\"%d\" width=\"10\" height=\"10\"/><text class=\"small\" x=\"%d\" y=\"%d\">%s</text>\n", i, at, y-9, at+14, y, name)
		at += 70
	}
	fmt.Fprintf(b, "  <text class=\"small row\" x=\"%d\" y=\"%d\">the steps of a command, by the lane's clock, mean</text>\n", svgName-12, y)
	for _, l := range lines {
		y += 22
		kind := fmt.Sprintf("%s, %d × %d, batch %d, mode %d, %s", units.Bytes(l.Block), l.Lanes, l.Depth, l.Batch, l.MemoryMode, l.Doorbell)
		fmt.Fprintf(b, "  <text class=\"row\" x=\"%d\" y=\"%d\">%s</text>\n", svgName-12, y+4, html.EscapeString(kind))
		at := float64(svgName)
		for i, s := range l.Steps {
			n := float64(s.Mean) / float64(longest) * (svgBar + svgGap + svgLat)
			fmt.Fprintf(b, "  <rect class=\"s%d\" x=\"%.1f\" y=\"%d\" width=\"%.2f\" height=\"14\"><title>%s %s</title></rect>\n", i, at, y-7, n, s.Step, units.Duration(s.Mean))
			at += n
		}
	}
	return y + 16
}
