package powercut

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/nvmeq/softctl/media"
)

// Run is one workload and its recording.
type Run struct {
	Seed    uint64
	Layout  Layout
	Workers int
	Ops     int // of each worker
	Before  *Tree

	Results [][]result // of each worker
	Mounted int        // position when the volume was mounted
	Done    int        // position when the workers had ended
	Closed  int        // position when the volume was unmounted, -1: it was not

	models    []*model
	recording *media.Recording
}

// execute does the workload on the volume in image, which holds r.Before.
func (r *Run) execute(image string) (err error) {
	rng := rand.New(rand.NewPCG(r.Seed, 1))
	rec := media.NewRecorder()
	s, err := openStack(image, stackOptions{lba: r.Layout.LBA, discard: r.Layout.Discard, commit: r.Layout.Commit, recorder: rec,
		outOfOrder: rng.IntN(2) == 0, seed: int64(r.Seed), lanes: 1 + rng.IntN(4)})
	if err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	defer func() { err = errors.Join(err, s.close()) }()
	r.Mounted = rec.Position()

	var wg sync.WaitGroup
	var failed atomic.Bool
	errs := make([]error, r.Workers)
	workers := make([]*worker, r.Workers)
	for i := range workers {
		m := newModel(i, int64(r.Layout.Block), [2]string{workerName(i), sharedName}, r.Before)
		workers[i] = &worker{m: m, g: newGenerator(m, &r.Layout, r.Seed), vol: s.vol, open: map[int]*ext4.Inode{}}
		r.models = append(r.models, m)
		wg.Go(func() {
			if errs[i] = workers[i].run(r.Ops, rec.Position, failed.Load); errs[i] != nil {
				failed.Store(true)
			}
		})
	}
	wg.Wait()
	r.Done, r.Closed = rec.Position(), -1
	if err := errors.Join(errs...); err != nil {
		for _, w := range workers {
			w.closeAll()
		}
		r.finish(rec)
		return err
	}

	// The tree must be the models' last state.
	t, err := walk(s.vol)
	if err != nil {
		err = fmt.Errorf("after the workload: %w", err)
	}
	for _, w := range workers {
		if err == nil {
			err = w.m.check(t, 1<<30, r.Layout.LBA, true)
		}
		w.closeAll()
	}
	if err != nil {
		r.finish(rec)
		return fmt.Errorf("before any cut: %w", err)
	}
	if rng.IntN(3) > 0 {
		if err := s.unmount(); err != nil {
			return fmt.Errorf("unmount: %w", err)
		}
		r.Closed = rec.Position()
	}
	r.finish(rec)
	return nil
}

// finish takes what was recorded so far.
func (r *Run) finish(rec *media.Recorder) {
	r.recording = rec.Recording()
	for _, m := range r.models {
		r.Results = append(r.Results, m.results)
	}
}

// rebuild makes the models of a run that was loaded.
func (r *Run) rebuild() {
	r.models = nil
	for i := range r.Workers {
		m := newModel(i, int64(r.Layout.Block), [2]string{workerName(i), sharedName}, r.Before)
		g := newGenerator(m, &r.Layout, r.Seed)
		for _, x := range r.Results[i] {
			m.apply(g.next(), x)
		}
		r.models = append(r.models, m)
	}
}

// check returns an error unless t is a tree that a cut of the recording may leave.
func (r *Run) check(t *Tree, cut int) error {
	for _, m := range r.models {
		if err := m.check(t, cut, r.Layout.LBA, r.Closed >= 0 && cut >= r.Closed); err != nil {
			return err
		}
	}
	return nil
}
