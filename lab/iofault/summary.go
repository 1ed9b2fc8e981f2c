package iofault

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Summary is what a campaign did.
type Summary struct {
	Sequences, Windows    int
	Faults                int // tries whose fault hit a command or allocation
	Missed                int // tries in which there was no k-th command
	Commands, Allocations int // faults of each kind
	Kernel, LaneFS        int // media that they recovered, too
	How                   map[string]int
	Met                   map[string]int // the kinds of steps that faults hit first
	Failures              int
	Kinds                 []Failure // one of each kind
}

// Failure is a try that found an error of LaneFS.
type Failure struct {
	Kind   string // equal for failures that probably have the same cause
	Again  string // the command that repeats the try
	Err    error
	Number int
}

func (f *Failure) String() string {
	return fmt.Sprintf("%v\n  again: %s", f.Err, f.Again)
}

func counts(m map[string]int) string {
	var list []string
	for k, n := range m {
		list = append(list, fmt.Sprintf("%s %d", k, n))
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// Steps lists the kinds of steps that faults hit, and how often.
func (s *Summary) Steps() string { return counts(s.Met) }

func (s *Summary) String() string {
	return fmt.Sprintf("%d faults (%d of commands, %d of allocations; the first step that was hit: %s) in %d windows of %d sequences; %d media recovered by the kernel too, %d by LaneFS; %d failures of %d kinds",
		s.Faults, s.Commands, s.Allocations, counts(s.How), s.Windows, s.Sequences, s.Kernel, s.LaneFS, s.Failures, len(s.Kinds))
}

func (k *running) countLocked(t *try, d depth) {
	s := &k.sum
	switch {
	case t.armed == nil || t.armed.hits.Load() == 0:
		s.Missed++
		return
	case t.mode.memory():
		s.Allocations++
	default:
		s.Commands++
	}
	s.Faults++
	if t.how == "" {
		t.how = "in the background"
	}
	s.How[t.how]++
	if t.where == "" {
		t.where = "background"
	}
	s.Met[t.where]++
	if d.kernel {
		s.Kernel++
	}
	if d.lanefs {
		s.LaneFS++
	}
	if time.Since(k.logged) > 15*time.Second {
		k.logged = time.Now()
		k.Logf("%4.0f s: %v", time.Since(k.start).Seconds(), s)
	}
}

var digits = regexp.MustCompile(`0x[0-9a-f]+|[0-9]+|"[^"]*"`)

func (k *running) failedLocked(t *try, f *finding, err error, again string) {
	line, _, _ := strings.Cut(f.what, "\n")
	if t.where == "" {
		t.where = "mount"
	}
	sig := f.stage + "/" + t.where
	switch f.stage {
	case "mark":
		sig = f.stage + "/" + digits.ReplaceAllString(line, "N")
	case "e2fsck":
	default:
		sig += "/" + digits.ReplaceAllString(line, "N")
	}
	k.sum.Failures++
	for i := range k.sum.Kinds {
		if k.sum.Kinds[i].Kind == sig {
			k.sum.Kinds[i].Number++
			return
		}
	}
	at := "the mount"
	switch {
	case t.at >= len(t.steps):
		at = "the unmount"
	case t.at >= 0:
		at = fmt.Sprintf("step %d, %v", t.at, t.steps[t.at])
	}
	x := Failure{Kind: sig, Again: again, Number: 1,
		Err: fmt.Errorf("%s (it hit %s in %s: %s; the last step was %s): %w%v", t.mode.Name, t.event(), t.where, t.how, at, err, &t.said)}
	k.sum.Kinds = append(k.sum.Kinds, x)
	k.Logf("FAILED: %v", &x)
}
