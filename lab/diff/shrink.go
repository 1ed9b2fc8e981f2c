package diff

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/lanefs/lanefs/fs"
)

// signature identifies the kind of failure: shrinking looks for the same one.
func (f *Failure) signature() string {
	classes := map[string]bool{}
	for _, d := range f.Diffs {
		class, _, _ := strings.Cut(d, ":")
		classes[class] = true
	}
	var list []string
	for c := range classes {
		list = append(list, c)
	}
	sort.Strings(list)
	return f.Stage + " " + string(f.Op.Kind) + " " + strings.Join(list, " ")
}

// Within returns a function that is true until limit has passed.
func Within(limit time.Duration) func() bool {
	deadline := time.Now().Add(limit)
	return func() bool { return time.Now().Before(deadline) }
}

// Shrink looks for the fewest Ops of a failing run that fail in the same way, as long as more returns true. It first takes the
// sequence up to the failure, then leaves out ever smaller pieces.
func Shrink(f *Failure, more func() bool) *Failure {
	want := f.signature()
	try := func(c Config) *Failure {
		got, err := Run(c)
		if err != nil || got == nil || got.signature() != want {
			return nil
		}
		return got
	}
	c, whole := f.Config, f
	if c.Profile == ProfileShared || f.Hangs {
		return f
	}
	if c.Procs > 1 {
		// Perhaps the process fails when it is alone, too.
		c.Procs, c.Proc = 1, f.Proc
		if f = try(c); f == nil {
			return whole
		}
	}
	keep := c.Keep
	if keep == nil {
		for i := range c.Ops {
			keep = append(keep, i)
		}
	}
	best := f
	fails := func(keep []int) bool {
		c.Keep = keep
		got := try(c)
		if got != nil {
			best = got
		}
		return got != nil
	}
	if f.Index >= 0 {
		if short := keep[:sort.SearchInts(keep, f.Index+1)]; fails(short) {
			keep = short
		}
	}
	minimise(keep, fails, more)
	return best
}

// minimise leaves ever smaller pieces out of a failing list, down to single numbers, as long as the rest fails and more
// returns true.
func minimise(keep []int, fails func([]int) bool, more func() bool) []int {
	for size := (len(keep) + 1) / 2; size > 0 && len(keep) > 1; {
		smaller := false
		for at := 0; at < len(keep); {
			if !more() {
				return keep
			}
			end := min(at+size, len(keep))
			if rest := slices.Concat(keep[:at], keep[end:]); len(rest) > 0 && fails(rest) {
				keep, smaller = rest, true
			} else {
				at = end
			}
		}
		switch {
		case size > 1:
			size = (size + 1) / 2
		case !smaller:
			return keep
		}
	}
	return keep
}

// ranges writes a list of numbers as "1,3-5".
func ranges(list []int) string {
	var parts []string
	for i := 0; i < len(list); {
		j := i
		for j+1 < len(list) && list[j+1] == list[j]+1 {
			j++
		}
		if i == j {
			parts = append(parts, fmt.Sprint(list[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", list[i], list[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ",")
}

// ParseRanges undoes ranges.
func ParseRanges(s string) ([]int, error) {
	var list []int
	for part := range strings.SplitSeq(s, ",") {
		from, to := 0, 0
		if strings.Count(part, "-") > 1 {
			return nil, fmt.Errorf("%q is no list of numbers such as 1,3-5", s)
		}
		if n, err := fmt.Sscanf(part, "%d-%d", &from, &to); n != 2 || err != nil {
			if n, err := fmt.Sscanf(part, "%d", &from); n != 1 || err != nil {
				return nil, fmt.Errorf("%q is no list of numbers such as 1,3-5", s)
			}
			to = from
		}
		for ; from <= to; from++ {
			list = append(list, from)
		}
	}
	return list, nil
}

// Report describes a failure, and how to reproduce it.
func (f *Failure) Report() string {
	var b strings.Builder
	c := f.Config
	fmt.Fprintf(&b, "%s: %s against %s, volume %q, profile %s, seed %d", f.Stage, c.Left.name(), c.Right.name(), c.Volume.Name, c.Profile, c.Seed)
	if c.Procs > 1 {
		fmt.Fprintf(&b, ", %d processes", c.Procs)
	}
	if f.Index >= 0 {
		fmt.Fprintf(&b, ", process %d, operation %d: %s", f.Proc, f.Index, f.Op)
	}
	b.WriteString(" (LaneFS first):\n")
	for i, d := range f.Diffs {
		if i == 20 {
			fmt.Fprintf(&b, "\tand %d more\n", len(f.Diffs)-i)
			break
		}
		fmt.Fprintf(&b, "\t%s\n", d)
	}
	if f.Log != "" {
		fmt.Fprintf(&b, "LaneFS printed:\n%s\n", f.Log)
	}
	if c.Keep != nil && len(c.Keep) <= 60 {
		b.WriteString("the operations:\n")
		for _, s := range c.sequence(c.Proc) {
			fmt.Fprintf(&b, "\t%4d %s\n", s.index, s.Op)
		}
	}
	fmt.Fprintf(&b, "again: %s\n", c.Command())
	return b.String()
}

func (s Side) name() string {
	switch {
	case s.Kind == "":
		return "nothing"
	case s.WriteBack:
		return s.Kind + " (write-back)"
	}
	return s.Kind
}

// transport is how a mount's requests come, if they can: what -io_uring says.
func (s Side) transport() string {
	if s.IOUring == "" && fs.IOUringAuto.Wanted() {
		return "on"
	}
	return cmp.Or(s.IOUring, "off")
}

// Command returns the command that runs c again.
func (c *Config) Command() string {
	s := fmt.Sprintf("go test ./lab/diff -v -run 'TestReplay$' -volume %s -profile %s -seed %d -ops %d", c.Volume.Name, c.Profile, c.Seed, c.Ops)
	add := func(on bool, format string, args ...any) {
		if on {
			s += fmt.Sprintf(format, args...)
		}
	}
	add(c.Left.WriteBack, " -writeback")
	add(c.Left.Kind == "lanefs", " -io_uring %s", c.Left.transport())
	add(c.Right.Kind == "", " -alone")
	add(c.Procs > 1, " -procs %d", c.Procs)
	add(c.Proc > 0, " -proc %d", c.Proc)
	add(c.Remount > 0, " -remount %d", c.Remount)
	add(c.NoProbe, " -noprobe")
	add(c.Left.Sabotage != "", " -left %s -sabotage %q", c.Left.Kind, c.Left.Sabotage)
	add(c.Keep != nil, " -keep %s", ranges(c.Keep))
	return s
}
