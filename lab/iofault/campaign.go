package iofault

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lanefs/lanefs/lab/diff"
)

// Campaign is many tries. The zero value of a field takes its default.
type Campaign struct {
	Seed     uint64        // of the first sequence; the others follow
	Time     time.Duration // 0: until Tries
	Tries    int           // 0: until Time
	PerK     int           // modes drawn for each command and allocation; 0: 1
	Most     int           // tries of a window; 0: 60
	Windows  int           // of each sequence; 0: 10
	Parallel int           // 0: 2
	Kernel   float64       // the part of the tries that the kernel looks at, too
	LaneFS   float64       // and LaneFS
	Layout   string        // "": all
	Profile  diff.Profile
	Dir      string // for images, in memory if possible; "": a temporary directory
	Kinds    int    // stop after so many kinds of failure; 0: 1
	Logf     func(format string, args ...any)

	// Of one try that is to be done again. Window 0: a campaign.
	Window int
	K      int
	Mode   string
}

// Summary is what a campaign did.
type Summary struct {
	Sequences, Windows    int
	Faults                int // tries whose fault met something
	Missed                int // tries that came to no such command
	Commands, Allocations int // faults of each kind
	Kernel, LaneFS        int // media that they looked at, too
	How                   map[string]int
	Met                   map[string]int // the kinds of steps that faults met first
	Failures              int
	Kinds                 []Failure // one of each kind
}

// Failure is a try that found something.
type Failure struct {
	Kind   string // what failures have in common that are probably one
	Again  string // the command that does it again
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

// Steps says which steps faults met, and how often.
func (s *Summary) Steps() string { return counts(s.Met) }

func (s *Summary) String() string {
	return fmt.Sprintf("%d faults (%d of commands, %d of allocations; the first step that met one: %s) in %d windows of %d sequences; %d media recovered by the kernel too, %d by LaneFS; %d failures of %d kinds",
		s.Faults, s.Commands, s.Allocations, counts(s.How), s.Windows, s.Sequences, s.Kernel, s.LaneFS, s.Failures, len(s.Kinds))
}

type running struct {
	Campaign
	layouts []*Layout
	dir     string
	start   time.Time

	mu     sync.Mutex
	media  map[string]*medium // aged volumes. Protected by mu, as is all below
	drawn  int
	sum    Summary
	err    error
	logged time.Time
}

// Run runs the campaign. The error says that it could not be run; what was found is in the summary.
func (c Campaign) Run() (*Summary, error) {
	if c.Logf == nil {
		c.Logf = func(string, ...any) {}
	}
	for _, d := range []struct {
		p *int
		v int
	}{{&c.PerK, 1}, {&c.Most, 60}, {&c.Windows, 10}, {&c.Parallel, 2}, {&c.Kinds, 1}} {
		if *d.p == 0 {
			*d.p = d.v
		}
	}
	dir, err := os.MkdirTemp(c.Dir, "lanefs-fault-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	k := &running{Campaign: c, dir: dir, start: time.Now(), media: map[string]*medium{}}
	k.sum.How, k.sum.Met = map[string]int{}, map[string]int{}
	for i := range Layouts {
		if c.Layout == "" || Layouts[i].Name == c.Layout {
			k.layouts = append(k.layouts, &Layouts[i])
		}
	}
	if len(k.layouts) == 0 {
		_, err := layoutNamed(c.Layout)
		return nil, err
	}
	k.logged = time.Now()
	c.Logf("what is under way is in %s/*.try", dir)
	if c.Window > 0 {
		k.Parallel = 1
	}
	var wg sync.WaitGroup
	for i := range k.Parallel {
		wg.Go(func() { k.lane(filepath.Join(dir, fmt.Sprint(i))) })
	}
	wg.Wait()
	return &k.sum, k.err
}

// over says that no more is to be tried.
func (k *running) over() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err != nil || len(k.sum.Kinds) >= k.Kinds || k.Time > 0 && time.Since(k.start) > k.Time || k.Tries > 0 && k.sum.Faults >= k.Tries
}

func (k *running) broken(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err = errors.Join(k.err, err)
}

// lane does one sequence after the other.
func (k *running) lane(mnt string) {
	if err := os.Mkdir(mnt, 0o700); err != nil {
		k.broken(err)
		return
	}
	for !k.over() {
		k.mu.Lock()
		n := k.drawn
		k.drawn++
		k.mu.Unlock()
		l, profile := k.layouts[n/2%len(k.layouts)], k.Profile
		if profile == "" {
			profile = []diff.Profile{diff.ProfileDirect, diff.ProfileNames}[n%2]
		}
		if err := k.sequence(l, profile, k.Seed+uint64(n), mnt); err != nil {
			k.broken(err)
			return
		}
		if k.Window > 0 {
			return
		}
	}
}

// volume is an aged volume of a layout.
func (k *running) volume(l *Layout) (*medium, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.media[l.Name] == nil {
		m, err := l.make(k.dir)
		if err != nil {
			return nil, fmt.Errorf("layout %s: %w", l.Name, err)
		}
		k.media[l.Name] = m
	}
	return k.media[l.Name], nil
}

func (k *running) sequence(l *Layout, profile diff.Profile, seed uint64, mnt string) error {
	m, err := k.volume(l)
	if err != nil {
		return err
	}
	c, err := newChain(l, m, profile, seed)
	if err != nil {
		return err
	}
	k.mu.Lock()
	k.sum.Sequences++
	k.mu.Unlock()
	windows := k.Windows
	if k.Window > 0 {
		windows = k.Window
	}
	for range windows {
		s, err := c.next()
		if err != nil {
			return err
		}
		if s == nil || k.over() {
			return nil
		}
		k.mu.Lock()
		k.sum.Windows++
		k.mu.Unlock()
		if k.Window == 0 {
			if err := k.tries(c, s, mnt); err != nil {
				return err
			}
		}
		if k.Window == c.window {
			mode, err := modeNamed(k.Mode)
			if err != nil {
				return err
			}
			return k.one(c, s, k.K, mode, mnt)
		}
	}
	return nil
}

// tries does a window's tries: in the order of the commands, and the modes by chance.
func (k *running) tries(c *chain, s *script, mnt string) error {
	type pick struct {
		k    int
		mode *Mode
	}
	var list []pick
	rng := chance(c, c.window, "tries")
	for n, e := range s.commands {
		var suit []*Mode
		for i := range Modes {
			if Modes[i].suits(e.Op) {
				suit = append(suit, &Modes[i])
			}
		}
		for range k.PerK {
			list = append(list, pick{n + 1, suit[rng.IntN(len(suit))]})
		}
	}
	for n := range s.allocs {
		list = append(list, pick{n + 1, &Modes[len(Modes)-1-rng.IntN(3)]})
	}
	for len(list) > k.Most {
		i := rng.IntN(len(list))
		list = slices.Delete(list, i, i+1)
	}
	for _, p := range list {
		if k.over() {
			return nil
		}
		if err := k.one(c, s, p.k, p.mode, mnt); err != nil {
			return err
		}
	}
	return nil
}

// hangs is how long a try may take.
const hangs = 3 * time.Minute

// one does a try.
func (k *running) one(c *chain, s *script, n int, mode *Mode, mnt string) error {
	again := fmt.Sprintf("go run ./lab/iofault/faults %v -window %d -k %d -mode %q", c, c.window, n, mode.Name)
	// What brings the whole program down leaves its command.
	if err := os.WriteFile(mnt+".try", []byte(again+"\n"), 0o600); err != nil {
		return err
	}
	rng := chance(c, c.window, n, mode.Name)
	t := &try{script: s, k: n, mode: mode, rng: rng}
	d := depth{kernel: rng.Float64() < k.Kernel, lanefs: rng.Float64() < k.LaneFS}
	if k.Window > 0 {
		d = depth{kernel: k.Kernel > 0, lanefs: true}
	}
	ended := make(chan error, 1)
	go func() {
		err := t.run()
		if err == nil {
			err = t.judge(d, mnt)
		}
		ended <- err
	}()
	var err error
	select {
	case err = <-ended:
		t.dev.Close()
	case <-time.After(hangs):
		b := make([]byte, 1<<20)
		err = found("hangs", "no end within %v\n%s", hangs, b[:runtime.Stack(b, true)])
	}
	var f *finding
	if err != nil && !errors.As(err, &f) {
		return fmt.Errorf("%s: %w", again, err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		k.failedLocked(t, f, err, again)
	}
	k.countLocked(t, d)
	return nil
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
		Err: fmt.Errorf("%s (it met %s in %s: %s; the last step was %s): %w%v", t.mode.Name, t.event(), t.where, t.how, at, err, &t.said)}
	k.sum.Kinds = append(k.sum.Kinds, x)
	k.Logf("FAILED: %v", &x)
}
