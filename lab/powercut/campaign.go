package powercut

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Campaign is many runs and cuts. The zero value of a field takes its default.
type Campaign struct {
	Seeds    []uint64      // these first; then Fresh, Fresh+1 and so on until the time is over
	Fresh    uint64        // 0: only Seeds
	Time     time.Duration // 0: only Seeds
	Runs     int           // stop after so many; 0: no limit
	Cuts     int           // of each run; 0: 40
	Ops      int           // of each worker; 0: 200
	Workers  int           // goroutines of a run; 0: 3
	Parallel int           // runs at a time; 0: 2
	Full     float64       // the part of the cuts that e2fsck and the kernel recover too
	Kernel   bool          // the kernel can mount images here
	Recuts   int           // cuts of LaneFS's recovery, for each of those
	Layout   string        // "": all, one after the other
	Dir      string        // for images, in memory if possible; "": a temporary directory
	Keep     string        // where failures are saved; "": nowhere
	Failures int           // stop after so many; 0: 1
	Logf     func(format string, args ...any)
}

// Summary is what a campaign did.
type Summary struct {
	Runs, Operations, NoSpace  int
	Cuts, Fsck, Kernel, Recuts int
	Failures                   []Failure
}

// Failure is a run that failed, or a cut of it.
type Failure struct {
	Seed   uint64
	Layout string
	Cut    *Cut   // nil: the run itself
	Saved  string // directory, "" if it was not saved
	Err    error
}

func (f *Failure) String() string {
	s := fmt.Sprintf("seed %d, layout %s", f.Seed, f.Layout)
	if f.Cut != nil {
		s += fmt.Sprintf(", cut %d, cut seed %d", f.Cut.At, f.Cut.Seed)
	}
	s += ": " + f.Err.Error()
	if f.Saved != "" {
		s += "\n  replay it: " + f.replay()
	}
	return s
}

func (f *Failure) replay() string {
	s := "go run ./lab/powercut/crash -replay " + f.Saved
	if f.Cut != nil {
		s += fmt.Sprintf(" -cut %d -cutseed %d", f.Cut.At, f.Cut.Seed)
	}
	return s
}

// Run runs the campaign. It returns an error if the campaign could not be run; failures that it found are in the summary.
func (c Campaign) Run() (*Summary, error) {
	if c.Logf == nil {
		c.Logf = func(string, ...any) {}
	}
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	def(&c.Cuts, 40)
	def(&c.Ops, 200)
	def(&c.Workers, 3)
	def(&c.Parallel, 2)
	def(&c.Failures, 1)
	layouts := Layouts
	if c.Layout != "" {
		l, err := layoutNamed(c.Layout)
		if err != nil {
			return nil, err
		}
		layouts = []Layout{l}
	}
	dir, err := os.MkdirTemp(c.Dir, "lanefs-crash-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	k := &running{Campaign: c, layouts: layouts, templates: templates{dir: dir, workers: c.Workers}, start: time.Now()}
	var wg sync.WaitGroup
	for i := range c.Parallel {
		wg.Go(func() { k.lane(filepath.Join(dir, fmt.Sprint(i))) })
	}
	wg.Wait()
	return &k.sum, k.err
}

// running is a campaign under way.
type running struct {
	Campaign
	layouts   []Layout
	templates templates
	start     time.Time

	mu     sync.Mutex
	drawn  int // runs begun
	sum    Summary
	err    error
	logged time.Time
}

// next draws the seed and layout of the next run.
func (k *running) next() (seed uint64, l Layout, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	i := k.drawn
	k.drawn++
	l = k.layouts[i%len(k.layouts)]
	if k.err != nil || len(k.sum.Failures) >= k.Failures || k.Runs > 0 && i >= k.Runs ||
		k.Time > 0 && time.Since(k.start) > k.Time {
		return 0, l, false
	}
	if i < len(k.Seeds) {
		return k.Seeds[i], l, true
	}
	return k.Fresh + uint64(i-len(k.Seeds)), l, k.Fresh > 0 && k.Time > 0
}

// lane does one run after the other.
func (k *running) lane(dir string) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		k.broken(err)
		return
	}
	for {
		seed, l, ok := k.next()
		if !ok {
			return
		}
		if err := k.one(seed, l, dir); err != nil {
			k.broken(err)
			return
		}
	}
}

func (k *running) broken(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err = errors.Join(k.err, err)
}

// one does a run and its cuts, then perhaps further ones, each on what a cut of the one before left.
func (k *running) one(seed uint64, l Layout, dir string) error {
	image := filepath.Join(dir, "work.img")
	before, err := k.templates.get(&l, image)
	rng := rand.New(rand.NewPCG(seed, 2))
	for links := rng.IntN(3); err == nil && before != nil; links-- {
		before, err = k.link(seed, l, dir, image, before, rng, links > 0)
		seed = rng.Uint64()
	}
	return err
}

// link does a run and its cuts. With more it leaves what a cut left in image, and returns its tree, nil after a failure.
func (k *running) link(seed uint64, l Layout, dir, image string, before *Tree, rng *rand.Rand, more bool) (*Tree, error) {
	r := &Run{Seed: seed, Layout: l, Workers: k.Workers, Ops: k.Ops, Before: before}
	err := r.execute(image)
	k.count(r)
	if err != nil {
		k.failed(r, nil, err)
		return nil, nil
	}
	b, err := newBench(r, dir)
	if err != nil {
		return nil, err
	}
	defer b.close()
	defer b.cleanup()
	cuts := make([]Cut, k.Cuts)
	for i := range cuts {
		cuts[i] = r.draw(rng)
	}
	slices.SortFunc(cuts, func(a, b Cut) int { return a.At - b.At }) // going forward costs less
	for _, cut := range cuts {
		if k.late() {
			return nil, nil
		}
		d := depth{look: rng.IntN(4) == 0}
		if rng.Float64() < k.Full {
			d = depth{look: true, fsck: true, kernel: k.Kernel, recuts: k.Recuts}
		}
		recuts := b.recuts
		if err := b.try(cut, d); err != nil {
			k.failed(r, &cut, fmt.Errorf("%w\n  (%v)", err, b.replay))
			return nil, nil
		}
		k.counted(d, b.recuts-recuts)
	}
	if !more {
		return nil, nil
	}
	t, err := b.leave(cuts[rng.IntN(len(cuts))], image, rng, k.Kernel)
	if err != nil {
		k.failed(r, nil, fmt.Errorf("going on after a cut: %w\n  (%v)", err, b.replay))
	}
	return t, nil
}

// late reports whether the campaign has run an eighth longer than its time.
func (k *running) late() bool { return k.Time > 0 && time.Since(k.start) > k.Time+k.Time/8 }

// draw picks a cut: anywhere, near a flush, or in the mounting and unmounting.
func (r *Run) draw(rng *rand.Rand) Cut {
	n := r.recording.Len()
	at := rng.IntN(n + 1)
	switch rng.IntN(10) {
	case 0:
		at = rng.IntN(min(r.Mounted+8, n) + 1)
	case 1:
		at = r.Done + rng.IntN(n-r.Done+1)
	case 2, 3, 4:
		for at < n && !r.recording.Flush(at) {
			at++
		}
		at = min(max(at+rng.IntN(4)-1, 0), n)
	}
	return Cut{at, rng.Uint64()}
}

func (k *running) count(r *Run) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sum.Runs++
	for _, rs := range r.Results {
		k.sum.Operations += len(rs)
		for _, x := range rs {
			if x.NoSpace {
				k.sum.NoSpace++
			}
		}
	}
}

func (k *running) counted(d depth, recuts int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sum.Cuts++
	k.sum.Recuts += recuts
	if d.fsck {
		k.sum.Fsck++
	}
	if d.kernel {
		k.sum.Kernel++
	}
	if time.Since(k.logged) > 10*time.Second {
		k.logged = time.Now()
		k.Logf("%4.0f s: %v", time.Since(k.start).Seconds(), &k.sum)
	}
}

func (s *Summary) String() string {
	return fmt.Sprintf("%d workloads, %d operations (%d found no space), %d cuts (%d recovered by e2fsck too, %d by the kernel), %d cuts of recovery, %d failures",
		s.Runs, s.Operations, s.NoSpace, s.Cuts, s.Fsck, s.Kernel, s.Recuts, len(s.Failures))
}

func (k *running) failed(r *Run, c *Cut, err error) {
	f := Failure{Seed: r.Seed, Layout: r.Layout.Name, Cut: c, Err: err}
	if k.Keep != "" {
		f.Saved = filepath.Join(k.Keep, fmt.Sprintf("%s-%d", r.Layout.Name, r.Seed))
		if e := r.Save(f.Saved); e != nil {
			f.Saved, f.Err = "", errors.Join(err, e)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sum.Failures = append(k.sum.Failures, f)
	k.Logf("FAILED: %v", &f)
}
