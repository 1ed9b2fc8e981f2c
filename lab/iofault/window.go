package iofault

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/lab/diff"
)

// script is the steps of a window, and the medium that they begin with.
type script struct {
	layout *Layout
	base   *medium
	slots  []slot
	mount  bool // the fault is armed before the mount, else after it
	steps  []diff.Op
	crowd  *crowd // instead of steps

	// Of the twin: trees[k] is the tree before step k, the last one that after all steps.
	trees    []Tree
	results  []outcome
	commands []blockdev.Event // of the steps and the unmount
	allocs   int
}

func (s *script) options(logf func(string, ...any)) ext4.Options {
	return ext4.Options{CommitInterval: 1 << 40, Atime: ext4.AtimeNever, Discard: s.layout.Discard, CacheSize: 8 << 20,
		Log: slog.New(slog.NewTextHandler(lineWriter(logf), nil))}
}

// lineWriter writes each line of a log to a function like fmt.Printf.
type lineWriter func(string, ...any)

func (w lineWriter) Write(p []byte) (int, error) {
	w("%s", strings.TrimSpace(string(p)))
	return len(p), nil
}

// twin runs the script without a fault twice: first to count its commands, then to record every tree. It returns the medium
// afterwards.
func (s *script) twin() (*medium, []slot, error) {
	s.trees, s.results, s.commands, s.allocs = nil, nil, nil, 0
	if _, _, err := s.play(false); err != nil {
		return nil, nil, err
	}
	return s.play(true)
}

func (s *script) play(look bool) (m *medium, slots []slot, err error) {
	dev := s.base.device()
	defer dev.Close()
	var said logged
	var mu sync.Mutex
	count := func() {
		if !look {
			dev.Observe(func(e blockdev.Event) {
				mu.Lock()
				defer mu.Unlock()
				s.commands = append(s.commands, e)
			})
			dev.Shorten(blockdev.Shortage{Skip: 1 << 40, Count: &s.allocs})
		}
	}
	if s.mount {
		count()
	}
	v, err := ext4.Open(dev, s.options(said.f))
	if err != nil {
		return nil, nil, fmt.Errorf("mount: %w%v", err, &said)
	}
	p := newPlayer(v)
	defer func() {
		if v != nil {
			p.close()
			err = errors.Join(err, v.Close())
		}
	}()
	if err := p.reopen(s.slots); err != nil {
		return nil, nil, err
	}
	if s.crowd != nil {
		if err := s.crowd.gather(v); err != nil {
			return nil, nil, err
		}
	}
	if !s.mount {
		count()
	}
	open := p.slots
	see := func() error {
		if !look {
			return nil
		}
		var before Tree
		if n := len(s.trees); n > 0 {
			before = s.trees[n-1]
		}
		t, err := walk(v, before, open)
		s.trees = append(s.trees, t)
		return err
	}
	if err := see(); err != nil {
		return nil, nil, err
	}
	if s.crowd != nil {
		if err := s.crowd.twin(v, func(slots []*slot) error {
			open = slots
			return see()
		}); err != nil {
			return nil, nil, err
		}
	}
	for k := range s.steps {
		r := p.do(&s.steps[k], false)
		if look {
			s.results = append(s.results, r)
		}
		if err := see(); err != nil {
			return nil, nil, fmt.Errorf("after %v: %w", s.steps[k], err)
		}
		if v.ReadOnly() {
			return nil, nil, fmt.Errorf("%v made the volume read-only: %w%v", s.steps[k], r.err, &said)
		}
	}
	slots = p.handles()
	p.close()
	err = v.Close()
	v = nil
	if err != nil {
		return nil, nil, fmt.Errorf("unmount: %w", err)
	}
	m, err = readMedium(dev.File(), s.layout.LBA)
	return m, slots, err
}

// interrupted runs the steps and cuts the power in the middle of them. It returns the medium, which needs recovery.
func (s *script) interrupted(rng *rand.Rand) (*medium, error) {
	dev := s.base.device()
	defer dev.Close()
	dev.CacheWrites()
	v, err := ext4.Open(dev, s.options(func(string, ...any) {}))
	if err != nil {
		return nil, err
	}
	p := newPlayer(v)
	if err := p.reopen(s.slots); err != nil {
		return nil, err
	}
	a := (&Mode{ops: anyOp, stay: lost}).arm(dev, len(s.commands)/2+1+rng.IntN(len(s.commands)/2+1), rng)
	defer a.remove()
	for k := range s.steps {
		p.do(&s.steps[k], false)
		if a.hits.Load() > 0 {
			break
		}
		if rng.IntN(3) == 0 {
			_ = v.Sync()
		}
	}
	dead := dev.Inject(blockdev.Fault{})
	defer dead()
	p.close()
	_ = v.Close()
	if err := dev.Cut(rng); err != nil {
		return nil, err
	}
	return readMedium(dev.File(), s.layout.LBA)
}
