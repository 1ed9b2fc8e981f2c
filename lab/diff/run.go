package diff

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Run runs both sides. It returns nil, nil when they do not differ; an error says that the run itself could not be done.
func Run(c Config) (*Failure, error) {
	if c.Volume.Inline && (c.Profile == ProfileData || c.Profile == ProfileDirect) {
		c.Right = Side{} // compare with the model: the kernel loses data there, see accepted
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

// problem makes a failure from an error of LaneFS's side.
func (r *run) problem(stage string, err error) *Failure {
	f := r.differs(stage, stage+": "+err.Error())
	r.explain(f, err)
	return f
}

// explain adds the keeper's output to a failure, with its stacks if it hangs.
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

// all does a run, from mount to the last comparison.
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

// epoch runs every process up to its next remount. more reports whether there is one.
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

// tree reads the tree of one side, in a process of its own.
func (r *run) tree(v *volume) ([]Entry, error) {
	w, err := startWorker(workerConfig{Root: v.dir, Run: r.began})
	if err != nil {
		return nil, err
	}
	a, err := w.call(request{Tree: true})
	return a.Tree, errors.Join(err, w.stop())
}
