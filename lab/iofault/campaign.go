package iofault

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
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
	Kernel   float64       // the part of the tries whose medium the kernel recovers, too
	LaneFS   float64       // the part whose medium LaneFS recovers, too
	Layout   string        // "": all
	Profile  diff.Profile
	Dir      string // for images, in memory if possible; "": a temporary directory
	Kinds    int    // stop after so many kinds of failure; 0: 1
	Logf     func(format string, args ...any)

	// Of one try to repeat. Window 0: a campaign.
	Window int
	K      int
	Mode   string
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

// Run runs the campaign. It returns an error if the campaign could not be run; failures that it found are in the summary.
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
	c.Logf("%s/*.try have the commands that repeat the tries in progress", dir)
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

// over reports whether the campaign is at its end.
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

// lane runs one sequence after the other.
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

// volume returns an aged volume of a layout.
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

// tries does a window's tries: in the order of the commands, with random modes.
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

// hangs is the time after which a try is taken to hang.
const hangs = 3 * time.Minute

// one does a try.
func (k *running) one(c *chain, s *script, n int, mode *Mode, mnt string) error {
	again := fmt.Sprintf("go run ./lab/iofault/faults %v -window %d -k %d -mode %q", c, c.window, n, mode.Name)
	// A try that ends the whole program leaves its command.
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
