package bench

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/units"
)

// Print writes the report for people.
func (r *Report) Print(out io.Writer) error {
	how := ""
	if r.Simulated {
		how = "\nSIMULATED: the controller is software (its figures are the CPU's and the image's, not a drive's)"
	}
	fmt.Fprintf(out, "%s: %s, firmware %s, namespace %d, blocks of %d bytes%s\n", r.Device, r.Model, r.Firmware, r.NSID, r.BlockSize, how)
	fmt.Fprintf(out, "lanes on %s (%s); region of %s from byte %d on; seed %d\n", r.Lanes, r.Runtime, units.Bytes(r.Size), r.Offset, r.Seed)
	if r.Interrupted {
		fmt.Fprintln(out, "INTERRUPTED: what was measured until then")
	}
	for _, l := range r.Runs {
		fmt.Fprintln(out)
		l.print(out)
	}
	return nil
}

// String says what a line is of.
func (l *Line) String() string {
	kind := map[int]string{0: "writes", 100: "reads"}[l.Reads]
	if kind == "" {
		kind = fmt.Sprintf("%d %% reads", l.Reads)
	}
	who := "lanes"
	if l.Doorbell == "" {
		who = "jobs"
	}
	s := fmt.Sprintf("%s: %s %s of %s, %s, depth %d", l.By, l.Order, kind, units.Bytes(l.Block), count(l.Lanes, who), l.Depth)
	if l.Doorbell == "" {
		return s
	}
	how := fmt.Sprintf("in batches of %d", l.Batch)
	if l.Batch == 1 {
		how = "one at a time"
	}
	return fmt.Sprintf("%s %s, queues of %d, memory mode %d, doorbells by %s", s, how, l.Queue, l.MemoryMode, l.Doorbell)
}

func (l *Line) print(out io.Writer) {
	fmt.Fprintln(out, l)
	if l.Refused != "" {
		fmt.Fprintf(out, "  not measured: %s\n", l.Refused)
		return
	}
	fmt.Fprintf(out, "  %.0f commands/s, %s/s; %d commands in %s", l.IOPS, units.Bytes(int64(l.Bandwidth)), l.Commands, units.Duration(l.Elapsed))
	if l.PerBell > 0 {
		fmt.Fprintf(out, ", %.1f to a doorbell", l.PerBell)
	}
	if l.Flush > 0 {
		fmt.Fprintf(out, ", flush %s", units.Duration(l.Flush))
	}
	fmt.Fprintln(out)
	if l.Note != "" {
		fmt.Fprintf(out, "  note: %s\n", l.Note)
	}
	if l.Failed > 0 {
		fmt.Fprintf(out, "  FAILED: %d commands; the first: %s\n", l.Failed, l.Error)
	}
	switch {
	case l.Wrong > 0:
		fmt.Fprintf(out, "  WRONG: %d of %d blocks that were checked; the first: %s\n", l.Wrong, l.Checked, l.FirstWrong)
	case l.Unwritten > 0:
		fmt.Fprintf(out, "  %d blocks checked by a kernel, %d right; the others have no word of what this seed writes there: they were never written, or it was lost\n",
			l.Checked, l.Checked-l.Unwritten)
	case l.Verified:
		fmt.Fprintf(out, "  %d blocks checked by a kernel, all right; the checks are between the commands, in the time and not in the latencies\n", l.Checked)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "  \tmean\tmin\tp50\tp90\tp95\tp99\tp99.9\tp99.99\tmax\t\n")
	row := func(name string, t *Times) {
		if t == nil {
			return
		}
		fmt.Fprintf(w, "  %s", name)
		for _, d := range t.all() {
			fmt.Fprintf(w, "\t%s", units.Duration(d))
		}
		fmt.Fprintf(w, "\t\n")
	}
	row("read", l.Read)
	row("write", l.Write)
	for i := range l.Steps {
		row("· "+l.Steps[i].Step, &l.Steps[i].Times)
	}
	w.Flush()
}

// count is a number of things, whose name is a plural.
func count(n int, things string) string {
	if n == 1 {
		things = things[:len(things)-1]
	}
	return fmt.Sprintf("%d %s", n, things)
}
