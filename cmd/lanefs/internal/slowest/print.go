package slowest

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/units"
)

func sortStates(s []State) {
	slices.SortFunc(s, func(a, b State) int { return cmp.Or(cmp.Compare(b.Took, a.Took), cmp.Compare(a.Name, b.Name)) })
}

// Print writes the request's steps, indented by layer, and how long its goroutine did what.
func (r *Request) Print(out io.Writer) {
	fmt.Fprintf(out, "%10s %10s  step\n", "at", "took")
	for _, s := range r.Steps {
		indent := strings.Repeat("  ", s.Depth)
		if s.Note {
			fmt.Fprintf(out, "%10s %10s  %s%s\n", "", "", indent, s.Name)
			continue
		}
		fmt.Fprintf(out, "%10s %10s  %s%s\n", units.Duration(s.At), units.Duration(s.Took), indent, s.Name)
	}
	var parts []string
	for _, s := range r.States {
		if s.Took > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", units.Duration(s.Took), s.Name))
		}
	}
	fmt.Fprintf(out, "of it: %s\n", strings.Join(parts, ", "))
}
