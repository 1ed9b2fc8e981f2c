package diff

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/lab/internal/drive"
)

// Volume says how to make an image.
type Volume struct {
	Name string
	Size int64
	Mkfs []string // options of mkfs.ext4

	WholeSeconds bool // its times have no parts of a second
	Inline       bool // small files lie in their inodes
}

// Side says how to reach a volume.
type Side struct {
	Kind      string // "lanefs", "direct" or "kernel"
	WriteBack bool   // lanefs: the kernel keeps dirty pages
	Sabotage  string // see sabotages
}

// Config is one run.
type Config struct {
	Volume      Volume
	Left, Right Side // Right's Kind "" is none: the left side alone, held against the model
	Profile     Profile
	Seed        uint64
	Ops         int // of each process
	Procs       int
	Proc        int   // the first process's number: chooses its sequence
	Remount     int   // unmount and mount both sides after so many Ops; 0: never
	NoProbe     bool  // do not look at attributes around each Op
	Keep        []int // of the sequence only these, by index; nil: all
	Dir         string
}

// step is an Op and its place in the sequence that it was generated in.
type step struct {
	Op
	index int
}

// Failure is a difference that a run found.
type Failure struct {
	Config Config
	Stage  string // "operation", "tree", "e2fsck", "mount", …
	Proc   int
	Index  int // of the Op in the sequence, -1 after the last
	Op     Op
	Diffs  []string // one line each: what kind of difference, a colon, the difference
	Log    string   // what the left keeper printed
	Hangs  bool     // something does not come to an end: where is in Log
}

// sequence is the steps of one process.
func (c *Config) sequence(proc int) []step {
	if c.Ops == 0 {
		return nil
	}
	ops := Generate(c.Profile, c.Seed, proc, c.Ops)
	for i := range ops {
		if c.Right.Kind == "" && !c.Volume.Inline && (c.Profile == ProfileData || c.Profile == ProfileDirect) {
			ops[i].alone()
		}
		if c.Left.WriteBack {
			ops[i].fitTimes(c.Volume)
		}
		if c.Volume.Inline && c.Right.Kind != "" {
			ops[i].fitInline()
		}
	}
	var steps []step
	add := func(i int) {
		if c.Remount > 0 && i > 0 && i%c.Remount == 0 {
			steps = append(steps, step{Op{Kind: OpRemount}, i})
		}
		steps = append(steps, step{ops[i], i})
	}
	if c.Keep == nil {
		for i := range ops {
			add(i)
		}
		return steps
	}
	for _, i := range c.Keep {
		if i < len(ops) {
			add(i)
		}
	}
	return steps
}

// alone makes an Op one for a volume that may be full, where the model is all there is to compare with. The model reads
// after ENOSPC. Writing through a map is out: on a FUSE mount nobody reserves blocks for it, and its failure is told to
// the next fsync alone.
func (o *Op) alone() {
	switch o.Kind {
	case OpOpen:
		o.Flags = o.Flags&^(unix.O_ACCMODE|unix.O_DIRECT) | unix.O_RDWR
	case OpMmapWrite:
		o.Kind, o.Flags = OpPwrite, 0
	}
}

// fitTimes makes the times that an Op sets such as the volume can hold.
func (o *Op) fitTimes(v Volume) {
	latest := int64(15032385535)
	if v.WholeSeconds {
		latest = 1<<31 - 1
	}
	for i := range o.Times {
		t := &o.Times[i]
		if t.Nsec == unix.UTIME_NOW || t.Nsec == unix.UTIME_OMIT {
			continue
		}
		if t.Sec = min(max(t.Sec, -1<<31), latest); t.Sec == latest || t.Sec == -1<<31 || v.WholeSeconds {
			t.Nsec = 0
		}
	}
}

// inlineMost is a size that every inode has room for.
const inlineMost = 40

// fitInline keeps an Op from what the kernel's ext4 answers with a loss where files lie in their inodes: see accepted.
func (o *Op) fitInline() {
	switch o.Kind {
	case OpTruncate, OpFtruncate:
		o.Len = min(o.Len, inlineMost)
	case OpFallocate:
		o.Kind = OpFsync
	}
}

// volume is one side of a run.
type volume struct {
	Side
	image string
	dir   string
	keep  *keeper
}

func (v *volume) mount(readOnly bool) error {
	if v.Kind == "direct" {
		return nil
	}
	var err error
	v.keep, err = startKeeper(keeperConfig{Kernel: v.Kind == "kernel", Image: v.image, Dir: v.dir, ReadOnly: readOnly, WriteBack: v.WriteBack})
	return err
}

// unmount ends a mount. What LaneFS logs is of damage and of races: none is expected.
func (v *volume) unmount() error {
	if v.keep == nil {
		return nil
	}
	k := v.keep
	v.keep = nil
	if err := k.stop(); err != nil {
		return fmt.Errorf("unmount %s: %w", v.Kind, err)
	}
	if s := k.stderr.String(); s != "" {
		return fmt.Errorf("%s printed: %s", v.Kind, s)
	}
	return nil
}

// Run runs both sides. It returns nil, nil when they do not differ; an error says that the run itself could not be done.
func Run(c Config) (*Failure, error) {
	if c.Volume.Inline && (c.Profile == ProfileData || c.Profile == ProfileDirect) {
		c.Right = Side{} // there the model is to be trusted, the kernel is not: see accepted
	}
	r := &run{Config: c, began: time.Now()}
	return r.do()
}

func (r *run) do() (*Failure, error) {
	dir, err := os.MkdirTemp(r.Dir, "diff-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	r.sides = []*volume{{Side: r.Left}}
	if r.Right.Kind != "" {
		r.sides = append(r.sides, &volume{Side: r.Right})
	}
	for i, v := range r.sides {
		v.image, v.dir = filepath.Join(dir, fmt.Sprintf("image%d", i)), filepath.Join(dir, fmt.Sprintf("mnt%d", i))
		if err := os.Mkdir(v.dir, 0o755); err != nil {
			return nil, err
		}
	}
	if err := r.makeImages(); err != nil {
		return nil, err
	}
	defer r.cleanup()
	return r.all()
}

type run struct {
	Config
	began  time.Time
	script []Op // run this, not what the seed makes
	sides  []*volume
	procs  []*proc
	failed sync.Once
	fail   *Failure
}

// proc is one process of a run: a worker on each side.
type proc struct {
	n       int
	steps   []step
	at      int
	root    string // below the mount
	workers []*worker
	model   *model
}

// mkfs makes an image.
func mkfs(v Volume, image string) error {
	f, err := os.Create(image)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(v.Size), f.Close()); err != nil {
		return err
	}
	args := append([]string{"-q", "-F", "-E", "lazy_itable_init=1,nodiscard"}, v.Mkfs...)
	_, err = drive.Run("mkfs.ext4", append(args, image)...)
	return err
}

func (r *run) makeImages() error {
	if err := mkfs(r.Volume, r.sides[0].image); err != nil {
		return err
	}
	for _, v := range r.sides[1:] {
		if err := copySparse(v.image, r.sides[0].image); err != nil {
			return err
		}
	}
	return nil
}

// copySparse copies a file's data and leaves its holes.
func copySparse(to, from string) error {
	_, err := drive.Run("cp", "--sparse=always", from, to)
	return err
}

// cleanup ends what a failed run left.
func (r *run) cleanup() {
	for _, p := range r.procs {
		for _, w := range p.workers {
			if w != nil {
				_ = w.stop()
			}
		}
	}
	for _, v := range r.sides {
		if v.keep != nil {
			_ = v.keep.stop()
		}
	}
}

func (r *run) differs(stage string, diffs ...string) *Failure {
	return &Failure{Config: r.Config, Stage: stage, Index: -1, Diffs: diffs}
}

// problem makes a failure of an error of LaneFS's side.
func (r *run) problem(stage string, err error) *Failure {
	f := r.differs(stage, stage+": "+err.Error())
	r.explain(f, err)
	return f
}

// explain adds what LaneFS printed, and where it hangs.
func (r *run) explain(f *Failure, err error) {
	k := r.sides[0].keep
	if k == nil {
		return
	}
	if f.Hangs = errors.Is(err, errHangs); f.Hangs {
		f.Log = k.dump()
		r.sides[0].keep = nil
		return
	}
	f.Log = k.stderr.String()
}

// all is a run from mount to the last comparison.
func (r *run) all() (*Failure, error) {
	for n := range max(1, r.Procs) {
		n += r.Proc
		p := &proc{n: n, steps: r.sequence(n)}
		for i, o := range r.script {
			p.steps = append(p.steps, step{o, i})
		}
		if r.Procs > 1 && r.Profile != ProfileShared {
			p.root = fmt.Sprintf("p%d", n)
		}
		if r.Profile == ProfileData || r.Profile == ProfileDirect {
			p.model = newModel()
		}
		r.procs = append(r.procs, p)
	}
	first := true
	for {
		for _, v := range r.sides {
			if err := v.mount(false); err != nil {
				return r.problem("mount", err), nil
			}
		}
		if first {
			if err := r.makeRoots(); err != nil {
				return nil, err
			}
			first = false
		}
		more, f, err := r.epoch()
		if f != nil || err != nil {
			return f, err
		}
		if !more {
			break
		}
		if f := r.unmountAll(); f != nil {
			return f, nil
		}
	}
	return r.finish()
}

func (r *run) unmountAll() *Failure {
	for _, v := range r.sides {
		if err := v.unmount(); err != nil {
			return r.problem("unmount", err)
		}
	}
	return nil
}

// makeRoots makes the directories of the processes.
func (r *run) makeRoots() error {
	for _, v := range r.sides {
		for _, p := range r.procs {
			if p.root == "" {
				continue
			}
			dir := filepath.Join(v.dir, p.root)
			if err := errors.Join(os.Mkdir(dir, 0o777), os.Chmod(dir, 0o777)); err != nil {
				return err
			}
		}
		if r.Profile == ProfileShared {
			for _, d := range sharedDirs {
				dir := filepath.Join(v.dir, d)
				if err := errors.Join(os.Mkdir(dir, 0o777), os.Chmod(dir, 0o777)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// epoch runs every process up to its next remount. more says that there is one.
func (r *run) epoch() (more bool, f *Failure, err error) {
	for _, p := range r.procs {
		p.workers = make([]*worker, len(r.sides))
		for i, v := range r.sides {
			cfg := workerConfig{Run: r.began, Probe: !r.NoProbe && r.Profile != ProfileShared && r.Left.Kind != "direct", Sabotage: v.Sabotage}
			if v.Kind == "direct" {
				cfg.Image = v.image
			} else {
				cfg.Root = filepath.Join(v.dir, p.root)
			}
			if p.workers[i], err = startWorker(cfg); err != nil {
				return false, nil, err
			}
		}
	}
	var wg sync.WaitGroup
	for _, p := range r.procs {
		wg.Go(func() {
			var f *Failure
			if r.Profile == ProfileShared {
				f = p.runApart(r)
			} else {
				f = p.run(r)
			}
			if f != nil {
				r.failed.Do(func() { r.fail = f })
			}
		})
	}
	wg.Wait()
	if r.fail != nil {
		return false, r.fail, nil
	}
	for _, p := range r.procs {
		for i, w := range p.workers {
			p.workers[i] = nil
			if err := w.stop(); err != nil {
				return false, r.problem("worker", err), nil
			}
		}
		if p.model != nil {
			p.model.slots = [Slots]*modelSlot{}
		}
		more = more || p.at < len(p.steps)
	}
	return more, nil, nil
}

// run runs a process's steps up to a remount or the end, both sides in step.
func (p *proc) run(r *run) *Failure {
	for ; p.at < len(p.steps); p.at++ {
		s := &p.steps[p.at]
		if s.Kind == OpRemount {
			p.at++
			return nil
		}
		if r.fail != nil {
			return nil // another process found something
		}
		results, err := p.do(&s.Op)
		f := &Failure{Config: r.Config, Stage: "operation", Proc: p.n, Index: s.index, Op: s.Op}
		if err != nil {
			f.Diffs = []string{"broken: " + err.Error()}
			r.explain(f, err)
			return f
		}
		l := &results[0]
		if len(results) > 1 {
			right := &results[1]
			mend(&r.Config, &s.Op, l, right)
			f.Diffs = compare(*l, *right)
		} else if l.Note != "" {
			f.Diffs = []string{"note: left: " + l.Note}
		}
		if p.model != nil && len(f.Diffs) == 0 {
			if bad := p.follow(&s.Op, l); bad != "" {
				f.Diffs = []string{"model: " + bad}
			}
		}
		if len(f.Diffs) > 0 {
			r.explain(f, nil)
			return f
		}
	}
	return nil
}

// do runs one Op on all sides.
func (p *proc) do(o *Op) ([]Result, error) {
	for _, w := range p.workers {
		if err := w.send(request{Op: o}); err != nil {
			return nil, fmt.Errorf("a worker died: %w: %s", err, w.stderr)
		}
	}
	results := make([]Result, len(p.workers))
	for i, w := range p.workers {
		a, err := w.receive()
		if err != nil {
			return nil, err
		}
		results[i] = a.Result
	}
	return results, nil
}

// tree asks for the tree on one side, from a process of its own.
func (r *run) tree(v *volume) ([]Entry, error) {
	w, err := startWorker(workerConfig{Root: v.dir, Run: r.began})
	if err != nil {
		return nil, err
	}
	a, err := w.call(request{Tree: true})
	return a.Tree, errors.Join(err, w.stop())
}
