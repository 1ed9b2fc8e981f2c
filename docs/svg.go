package docs

import (
	"fmt"
	"html"
	"strings"
)

// drawing is an SVG picture that follows the reader's light or dark scheme.
type drawing struct {
	lines, boxes strings.Builder // lines are drawn first, below the boxes
}

const style = `  <style>
    text { font: 13px ui-sans-serif, system-ui, "DejaVu Sans", sans-serif; fill: #1f2328; text-anchor: middle }
    .small { font-size: 11px; fill: #59636e }
    rect { fill: #f6f8fa; stroke: #818b98 }
    path { fill: none; stroke: #0969da; stroke-opacity: .55; stroke-width: 1.3 }
    marker path { fill: #0969da; stroke: none }
    @media (prefers-color-scheme: dark) {
      text { fill: #f0f6fc }
      .small { fill: #9198a1 }
      rect { fill: #151b23; stroke: #656c76 }
      path { stroke: #4493f8 }
      marker path { fill: #4493f8 }
    }
  </style>
  <defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0 L8 4 L0 8 Z"/></marker></defs>
`

// box draws a rectangle with lines of text in its middle; the first is the title.
func (d *drawing) box(x, y, w, h int, title string, small ...string) {
	fmt.Fprintf(&d.boxes, "  <rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"6\"/>\n", x, y, w, h)
	at := y + h/2 + 4 - 7*len(small)
	d.label(x+w/2, at, "", title)
	for i, s := range small {
		d.label(x+w/2, at+15*(i+1), "small", s)
	}
}

// label writes text around the middle x, on the base line y.
func (d *drawing) label(x, y int, class, text string) {
	if class != "" {
		class = ` class="` + class + `"`
	}
	fmt.Fprintf(&d.boxes, "  <text x=\"%d\" y=\"%d\"%s>%s</text>\n", x, y, class, html.EscapeString(text))
}

// arrow draws an SVG path with a tip at its end.
func (d *drawing) arrow(format string, args ...any) {
	fmt.Fprintf(&d.lines, "  <path marker-end=\"url(#tip)\" d=\""+format+"\"/>\n", args...)
}

// svg is the picture. title is what a reader hears who cannot see it.
func (d *drawing) svg(width, height int, title string) string {
	return fmt.Sprintf("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\">\n  <title>%s</title>\n%s%s%s</svg>\n",
		width, height, width, height, html.EscapeString(title), style, d.lines.String(), d.boxes.String())
}
