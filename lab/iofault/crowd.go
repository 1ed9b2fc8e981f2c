package iofault

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/lab/diff"
	"github.com/lanefs/lanefs/lab/internal/files"
)

// A crowd is several players at the same time, each with a sequence and a directory of its own. They share what belongs to the
// volume: bitmaps, inode tables, the running transaction. So a fault that hits one player must not change the others' part of
// a block. The twin runs them one after the other, which gives the same tree.
type crowd struct {
	ops     [][]diff.Op
	results [][]outcome
}

const crowdSize = 3

func crowdDir(n int) string { return fmt.Sprintf("crowd%d", n) }

func newCrowd(l *Layout, profile diff.Profile, seed uint64, n int) *crowd {
	c := &crowd{ops: make([][]diff.Op, crowdSize), results: make([][]outcome, crowdSize)}
	for k := range c.ops {
		for _, o := range operations(l, profile, seed+uint64(k), 4*n) {
			if o.Kind == opTrim || strings.HasPrefix(o.Path, "..") || len(c.ops[k]) == n {
				continue
			}
			dir := crowdDir(k) + "/"
			if o.Seed != 0 {
				o.Seed += uint32(k) << 16 // no two players write the same bytes
			}
			if o.Path != "" {
				o.Path = dir + o.Path
			}
			if o.Path2 != "" && o.Kind != diff.OpSymlink {
				o.Path2 = dir + o.Path2
			}
			c.ops[k] = append(c.ops[k], o)
		}
	}
	return c
}

// gather makes the directories that the players need.
func (c *crowd) gather(v *ext4.FS) error {
	root, err := v.Root()
	if err != nil {
		return err
	}
	defer root.Put()
	for k := range c.ops {
		if err := put(root.Mkdir(crowdDir(k), 0o755, 0, 0)); err != nil && !errors.Is(err, ext4.ErrExist) {
			return err
		}
	}
	return v.Sync()
}

// twin runs the players one after the other. It calls see after each operation.
func (c *crowd) twin(v *ext4.FS, see func([]*slot) error) error {
	for k := range c.ops {
		p := newPlayer(v)
		c.results[k] = nil
		for i := range c.ops[k] {
			c.results[k] = append(c.results[k], p.do(&c.ops[k][i], false))
			if err := see(p.slots); err != nil {
				p.close()
				return err
			}
		}
		p.close()
		if err := see(nil); err != nil {
			return err
		}
	}
	return nil
}

// crowded runs all players at once. Each repeats an operation that failed because of a passing fault.
func (t *try) crowded() error {
	var wg sync.WaitGroup
	errs := make([]error, len(t.crowd.ops))
	for k := range t.crowd.ops {
		wg.Go(func() {
			p := newPlayer(t.vol)
			defer p.close()
			errs[k] = t.crowdPlay(p, k)
		})
	}
	wg.Wait()
	t.reached = len(t.trees) - 1
	t.how, t.where = "in a crowd", "a crowd"
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if t.vol.ReadOnly() || t.armed.hits.Load() == 0 || !t.mode.passes() || t.failed {
		return nil
	}
	return t.see("after all players have ended", func(got Tree) string { return got.same(t.trees[t.reached]) })
}

func (t *try) crowdPlay(p *player, k int) error {
	for i := range t.crowd.ops[k] {
		o, want := &t.crowd.ops[k][i], t.crowd.results[k][i]
		r := p.do(o, false)
		if same(r, want) && r.ret == want.ret { // of a write that found the volume full it counts how much it wrote
			continue
		}
		t.said.f("player %d, %v: %s, and alone %s", k, o, show(r), show(want))
		tight := t.layout.Free > 0 || errors.Is(r.err, ext4.ErrNoSpace) || errors.Is(want.err, ext4.ErrNoSpace)
		if tight || t.vol.ReadOnly() || !t.mode.passes() {
			t.mu.Lock()
			t.failed = true
			t.strays[k] = t.strays[k] || tight // it may have written what the twin had no space for
			t.mu.Unlock()
			return nil
		}
		if t.armed.hits.Load() == 0 {
			return found("crowd", "%v without a fault: %s, and alone %s", o, show(r), show(want))
		}
		again := p.do(o, true)
		for n := 0; n < 2 && t.mode.stay == thrice && !same(again, want); n++ {
			again = p.do(o, true)
		}
		done := errors.Is(again.err, ext4.ErrExist) || errors.Is(again.err, ext4.ErrNotExist) // by the first try
		if !same(again, want) && !done && !t.vol.ReadOnly() && !errors.Is(again.err, ext4.ErrNoSpace) {
			return found("crowd", "%v: %s, then %s, and without a fault %s", o, show(r), show(again), show(want))
		}
		if t.vol.ReadOnly() || errors.Is(again.err, ext4.ErrNoSpace) {
			t.mu.Lock()
			t.failed = true
			t.mu.Unlock()
			return nil
		}
	}
	return nil
}

// crowdFits is fits for what a crowd has left: the whole tree if the unmount succeeded, else any tree whose files have only
// bytes that the files of that name had there at some time.
func (t *try) crowdFits(got Tree) string {
	last := t.trees[t.reached]
	if t.closed && !t.failed && t.mode.passes() {
		if d := got.partly(last, []Tree{last}, nil); d != "" {
			return "it is not the tree that was unmounted: " + d
		}
		return ""
	}
	for k, strays := range t.strays {
		if strays {
			maps.DeleteFunc(got, func(p string, _ *files.Node) bool { return strings.HasPrefix(p, "/"+crowdDir(k)+"/") })
		}
	}
	return got.own(t.trees)
}
