package powercut

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/lanefs/lanefs/nvmeq/softctl/media"
)

// Cut names one loss of power of a run.
type Cut struct {
	At   int    // position
	Seed uint64 // which of the possible media
}

// depth says what is done with a cut, besides LaneFS's recovery.
type depth struct {
	look   bool // a read-only mount first
	fsck   bool // recovery by e2fsck
	kernel bool // recovery by the kernel
	recuts int  // cuts of LaneFS's recovery
}

// bench is a place to cut a run's recording in: a directory for images.
type bench struct {
	run    *Run
	dir    string
	replay *media.Replay
	recuts int // cuts of recoveries made so far
}

func newBench(run *Run, dir string) (*bench, error) {
	p, err := media.NewReplay(run.recording)
	if err != nil {
		return nil, err
	}
	return &bench{run: run, dir: dir, replay: p}, nil
}

func (b *bench) close() error { return b.replay.Close() }

func (b *bench) image(name string) string { return filepath.Join(b.dir, name) }

// put makes an image of the medium at the cut.
func (b *bench) put(name string) (string, error) {
	path := b.image(name)
	_, err := b.replay.WriteTo(path)
	return path, err
}

// try makes a cut, recovers it in every way that d names, and compares the trees.
func (b *bench) try(c Cut, d depth) error {
	if err := b.replay.Cut(c.At, c.Seed); err != nil {
		return err
	}
	l := &b.run.Layout
	image, err := b.put("cut.img")
	if err != nil {
		return err
	}
	var seen *Tree
	if d.look {
		if seen, err = readOnly(image, l); err != nil {
			return err
		}
		if n, err := b.replay.WriteTo(image); err != nil || n > 0 {
			return errors.Join(err, fmt.Errorf("the read-only look changed %d bytes", n))
		}
	}
	var rec *media.Recorder
	if d.recuts > 0 {
		rec = media.NewRecorder()
	}
	t, err := ours(image, l, rec)
	if err != nil {
		return err
	}
	if err := b.run.check(t, c.At); err != nil {
		return err
	}
	if d.look {
		if err := seen.same(t); err != nil {
			return fmt.Errorf("read-only and after recovery: %w", err)
		}
	}
	if d.fsck {
		if image, err = b.put("fsck.img"); err != nil {
			return err
		}
		other, truncated, err := fsckRepair(image, l)
		if err != nil {
			return err
		}
		other.restoreXattrs(t, truncated)
		if err := t.same(other); err != nil {
			return fmt.Errorf("LaneFS's recovery and e2fsck's: %w", err)
		}
	}
	if d.kernel {
		if image, err = b.put("kernel.img"); err != nil {
			return err
		}
		other, err := kernel(image, b.image("mnt"))
		if err != nil {
			return err
		}
		if err := t.same(other); err != nil {
			return fmt.Errorf("LaneFS's recovery and the kernel's: %w", err)
		}
	}
	if d.recuts > 0 {
		return b.recut(c, rec.Recording(), t, d.recuts)
	}
	return nil
}

// recut cuts a recorded recovery n times. Recovering again must give the same tree each time.
func (b *bench) recut(c Cut, rec *media.Recording, want *Tree, n int) error {
	if rec.Len() == 0 {
		return nil
	}
	p, err := media.NewReplay(rec)
	if err != nil {
		return err
	}
	defer p.Close()
	r := rand.New(rand.NewPCG(c.Seed, uint64(c.At)))
	for range n {
		at, seed := r.IntN(rec.Len()+1), r.Uint64()
		if err := p.Cut(at, seed); err != nil {
			return err
		}
		image := b.image("recut.img")
		if _, err := p.WriteTo(image); err != nil {
			return err
		}
		t, err := ours(image, &b.run.Layout, nil)
		if err == nil {
			err = want.same(t)
		}
		if err != nil {
			return fmt.Errorf("recovery itself cut (%v): %w", p, err)
		}
		b.recuts++
	}
	return nil
}

// leave writes to image what a cut left, for the next workload: not recovered, so that mounting recovers it, or already
// recovered in one of the ways. It returns the tree.
func (b *bench) leave(c Cut, image string, r *rand.Rand, withKernel bool) (*Tree, error) {
	l := &b.run.Layout
	if err := b.replay.Cut(c.At, c.Seed); err != nil {
		return nil, err
	}
	path, err := b.put("cut.img")
	if err != nil {
		return nil, err
	}
	t, err := ours(path, l, nil)
	if err != nil {
		return nil, err
	}
	way := r.IntN(5)
	if way == 0 {
		return t, os.Rename(path, image)
	}
	if _, err := b.replay.WriteTo(image); err != nil {
		return nil, err
	}
	switch {
	case way == 1:
		t, _, err = fsckRepair(image, l)
	case way == 2 && withKernel:
		_, err = kernel(image, b.image("mnt"))
	}
	return t, err
}

// cleanup removes the images.
func (b *bench) cleanup() {
	for _, n := range []string{"cut.img", "fsck.img", "kernel.img", "recut.img"} {
		os.Remove(b.image(n))
	}
}
