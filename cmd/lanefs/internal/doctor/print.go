package doctor

import (
	"fmt"
	"io"
)

// Print writes the findings for people: one a line under its area, the remedy below it.
func (r *Report) Print(out io.Writer) error {
	area := ""
	for _, f := range r.Findings {
		if f.Area != area {
			if area = f.Area; f.Area != Basics {
				fmt.Fprintln(out)
			}
			fmt.Fprintf(out, "%s\n", area)
		}
		mark := "ok  "
		switch {
		case !f.OK && f.Needed:
			mark = "FAIL"
		case !f.OK:
			mark = "no  "
		}
		fmt.Fprintf(out, "%s  %-20s %s\n", mark, f.What, f.Found)
		if f.Remedy != "" {
			if _, err := fmt.Fprintf(out, "      %-20s remedy: %s\n", "", f.Remedy); err != nil {
				return err
			}
		}
	}
	if len(r.Next) > 0 {
		fmt.Fprint(out, "\nwhat to do next, in this order\n")
	}
	for i, s := range r.Next {
		fmt.Fprintf(out, "%3d.  %s\n", i+1, s.What)
		if s.Command != "" {
			fmt.Fprintf(out, "          %s\n", s.Command)
		}
	}
	_, err := fmt.Fprintln(out)
	return err
}
