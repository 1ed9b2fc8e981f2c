package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// event is one line of go test -json: see `go doc test2json`.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
	Elapsed float64 // s
}

// report turns events into what a person reads.
type report struct {
	out, log io.Writer
	notes    []string
	stalled  func() []string // what may hold tests up

	mu       sync.Mutex
	printed  time.Time           // when out got its last line; protected by mu
	running  map[key]time.Time   // protected by mu, as all below
	output   map[key][]string    // of tests that have not ended, and of packages
	failing  map[string]bool     // packages with a failed test
	skipped  map[string][]string // by reason
	broken   []string            // packages that failed
	failures []string            // tests that failed
	passed   int
	slow     []slow // whole tests, without their parts, of a second and more
	cost     []slow // CPU time of jobs
}

// slow is how long a test took.
type slow struct {
	key
	seconds float64
}

// slowest is how many of the slowest tests, and of the jobs that took most CPU time, the report names.
const slowest = 10

// key is one test; with an empty name, a package's own output. A package may run in several parts at the same time.
type key struct{ part, pkg, name string }

// in is the package, and in which part it runs.
func (k key) in() string { return strings.TrimSpace(k.pkg + " " + k.part) }

// quiet is how long nothing may be printed.
const quiet = 30 * time.Second

func newReport(out, log io.Writer) *report {
	return &report{out: out, log: log, stalled: func() []string { return stalled("/proc") }, printed: time.Now(), running: map[key]time.Time{}, output: map[key][]string{},
		failing: map[string]bool{}, skipped: map[string][]string{}}
}

// read reports events of a part until the end of from. Several goroutines may call it.
func (r *report) read(from io.Reader, part string) error {
	stop := make(chan struct{})
	var ticking sync.WaitGroup
	ticking.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(quiet / 6):
				r.tick(time.Now())
			}
		}
	})
	defer ticking.Wait()
	defer close(stop)
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) != nil {
				e = event{Action: "build-output", Output: line} // the go command's own words
			}
			r.add(e, part, time.Now())
		}
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func (r *report) add(e event, part string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := key{part, e.Package, e.Test}
	switch e.Action {
	case "run", "cont":
		r.running[t] = now
	case "pause": // it waits for the tests that do not run beside others
		delete(r.running, t)
	case "output":
		if !strings.HasPrefix(e.Output, "=== ") {
			r.output[t] = append(r.output[t], e.Output)
		}
	case "build-output":
		r.print(e.Output)
	case "pass", "fail", "skip":
		r.ended(t, e)
	}
}

// ended reports the end of a test or of a package.
func (r *report) ended(t key, e event) {
	text := r.output[t]
	delete(r.running, t)
	delete(r.output, t)
	fmt.Fprint(r.log, strings.Join(text, ""))
	if t.name == "" {
		if e.Action == "fail" {
			r.broken = append(r.broken, t.in())
			r.unended(t)
			if all := strings.Join(text, ""); !r.failing[t.in()] || crash.MatchString(all) {
				r.print(all)
			}
		}
		if e.Action != "skip" {
			r.print(fmt.Sprintf("%-4s  %s  %.1f s\n", map[string]string{"pass": "ok", "fail": "FAIL"}[e.Action], t.in(), e.Elapsed))
		}
		return
	}
	if e.Elapsed >= 1 && !strings.Contains(t.name, "/") {
		r.slow = append(r.slow, slow{t, e.Elapsed})
	}
	switch e.Action {
	case "pass":
		r.passed++
	case "skip":
		why := reason(text)
		r.skipped[why] = append(r.skipped[why], t.name)
	case "fail":
		r.failing[t.in()] = true
		r.failures = append(r.failures, t.in()+" "+t.name+heart(text))
		r.print(strings.Join(text, ""))
	}
}

// heartLines is how many lines the sums have of a test that failed: who reads the end of a log alone learns what it was.
const heartLines = 12

// heart is the lines of a failed test that say what failed: from the first of testify's on, or else from its first.
func heart(text []string) string {
	from := max(slices.IndexFunc(text, func(line string) bool { return strings.Contains(line, "Error Trace:") }), 0)
	lines := text[from:min(from+heartLines, len(text))]
	var s strings.Builder
	for _, line := range lines {
		if line = strings.TrimRight(line, " \t\n"); line != "" && !strings.HasPrefix(strings.TrimSpace(line), "--- FAIL") {
			s.WriteString("\n      " + strings.TrimSpace(line))
		}
	}
	return s.String()
}

// unended reports the tests that a package has left running: it crashed, or its time was up.
func (r *report) unended(of key) {
	var left []key
	for t := range r.running {
		if t.in() == of.in() {
			left = append(left, t)
		}
	}
	slices.SortFunc(left, func(a, b key) int { return strings.Compare(a.name, b.name) })
	for _, t := range left {
		r.ended(t, event{Action: "fail"})
	}
}

// crash is what the Go runtime and the race detector begin with.
var crash = regexp.MustCompile(`(?m)^(panic:|fatal error:|WARNING: DATA RACE)`)

var said = regexp.MustCompile(`^ *[^ ]+\.go:[0-9]+: `)

// reason is the last line that a test has logged.
func reason(text []string) string {
	for _, line := range slices.Backward(text) {
		if at := said.FindString(line); at != "" {
			return strings.TrimSpace(line[len(at):])
		}
	}
	return "no reason given"
}

// tick names the tests that run if nothing was printed for a while, and what may hold them up; or says that none runs.
func (r *report) tick(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Sub(r.printed) < quiet {
		return
	}
	if len(r.running) == 0 { // which takes minutes where nothing was built before
		r.print("...   no test runs: the go command builds\n")
		return
	}
	last := map[string]key{} // the test of each package that began last: it runs, the others wait for it
	for t, began := range r.running {
		if o, ok := last[t.in()]; !ok || began.After(r.running[o]) {
			last[t.in()] = t
		}
	}
	for _, pkg := range slices.Sorted(maps.Keys(last)) {
		t := last[pkg]
		r.print(fmt.Sprintf("...   %s %s, for %.0f s\n", pkg, t.name, now.Sub(r.running[t]).Seconds()))
	}
	for _, line := range r.stalled() {
		r.print("      " + line + "\n")
	}
}

func (r *report) print(s string) {
	fmt.Fprint(r.out, s)
	fmt.Fprint(r.log, s)
	r.printed = time.Now()
}

// spent notes the CPU time of a job: of the go command, its tests, and whatever process they waited for.
func (r *report) spent(packages []string, part string, cpu time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	name := packages[0]
	if more := len(packages) - 1; more > 0 {
		name = fmt.Sprintf("%s and %d more", name, more)
	}
	r.cost = append(r.cost, slow{key{part: part, pkg: name}, cpu.Seconds()})
}

func (r *report) failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.broken)+len(r.failures) > 0
}

// end prints the sums. It returns an error if anything failed, or nothing ran.
func (r *report) end() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	var s strings.Builder
	slices.SortStableFunc(r.slow, func(a, b slow) int { return cmp.Compare(b.seconds, a.seconds) })
	for i, t := range r.slow {
		if i < slowest {
			fmt.Fprintf(&s, "%s %s %.0f s", map[bool]string{true: "\nthe slowest:", false: ","}[i == 0], t.name, t.seconds)
		}
		fmt.Fprintf(r.log, "%3d. %6.1f s %s %s\n", i+1, t.seconds, t.in(), t.name)
	}
	if len(r.slow) > 0 {
		s.WriteString("\n")
	}
	all := 0.0
	slices.SortStableFunc(r.cost, func(a, b slow) int { return cmp.Compare(b.seconds, a.seconds) })
	for i, job := range r.cost {
		all += job.seconds
		if i < slowest {
			fmt.Fprintf(&s, "%s %s %.0f s", map[bool]string{true: "most CPU time:", false: ","}[i == 0], job.in(), job.seconds)
		}
		fmt.Fprintf(r.log, "%6.1f s of CPU %s\n", job.seconds, job.in())
	}
	if len(r.cost) > 0 {
		fmt.Fprintf(&s, "; together %.0f s\n", all)
	}
	for i, why := range slices.Sorted(maps.Keys(r.skipped)) {
		if i == 0 {
			s.WriteString("\nskipped:\n")
		}
		n += len(r.skipped[why])
		fmt.Fprintf(&s, "  %s: %s\n", why, strings.Join(r.skipped[why], " "))
	}
	for _, note := range r.notes {
		fmt.Fprintln(&s, note)
	}
	for title, list := range map[string][]string{"failed tests": r.failures, "failed packages": r.broken} {
		if len(list) > 0 {
			fmt.Fprintf(&s, "%s:\n  %s\n", title, strings.Join(list, "\n  "))
		}
	}
	failed := len(r.failures)
	if failed == 0 {
		failed = len(r.broken)
	}
	fmt.Fprintf(&s, "%d passed, %d failed, %d skipped\n", r.passed, failed, n)
	r.print(s.String())
	switch {
	case failed > 0:
		return fmt.Errorf("%d failed; all output is in build/test.log", failed)
	case r.passed == 0:
		return errors.New("no test ran")
	}
	return nil
}
