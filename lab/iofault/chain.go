package iofault

import (
	"errors"
	"fmt"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/lab/diff"
)

// chain is a sequence and the campaign's position in it: windows follow one another on one volume, each from the medium that
// the twin of the window before has left.
type chain struct {
	layout  *Layout
	profile diff.Profile
	seed    uint64

	ops    []diff.Op
	base   *medium
	slots  []slot
	window int
}

const (
	dataPrefix  = 40 // operations before the first window, so that there is something to operate on
	namesPrefix = 150
	chainOps    = 700
)

func newChain(l *Layout, volume *medium, profile diff.Profile, seed uint64) (*chain, error) {
	c := &chain{layout: l, profile: profile, seed: seed, base: volume, slots: make([]slot, diff.Slots),
		ops: operations(l, profile, seed, chainOps)}
	n := dataPrefix
	if profile == diff.ProfileNames {
		n = namesPrefix
	}
	s := &script{layout: l, base: c.base, slots: c.slots, steps: c.take(n)}
	var err error
	if c.base, c.slots, err = s.play(false); err != nil {
		return nil, fmt.Errorf("%v: before the first window: %w", c, err)
	}
	return c, nil
}

func (c *chain) String() string {
	return fmt.Sprintf("-layout %s -profile %s -seed %d", c.layout.Name, c.profile, c.seed)
}

// take returns the next n operations, fewer at the end.
func (c *chain) take(n int) []diff.Op {
	n = min(n, len(c.ops))
	list := c.ops[:n]
	c.ops = c.ops[n:]
	return list
}

// next returns the script of the next window, with its twin; nil after the last.
func (c *chain) next() (*script, error) {
	c.window++
	rng := chance(c, c.window)
	s := &script{layout: c.layout, base: c.base, slots: c.slots}
	synced := func(n int) {
		for _, o := range c.take(n) {
			s.steps = append(s.steps, o, diff.Op{Kind: diff.OpSync})
		}
	}
	switch {
	case c.window == 9:
		synced(90) // enough for the log to wrap
	case c.window%5 == 3:
		synced(6)
	default:
		s.steps = append(append(s.steps, c.take(3)...), diff.Op{Kind: diff.OpSync})
		s.steps = append(s.steps, c.take(1)...)
	}
	if len(c.ops) == 0 {
		return nil, nil
	}
	if c.window%5 == 2 {
		s.steps, s.crowd = nil, newCrowd(c.layout, c.profile, rng.Uint64(), 20)
	}
	m, slots, err := s.twin()
	if s.crowd != nil && errors.Is(err, ext4.ErrNoSpace) { // there is no space for its directories
		s.crowd, s.steps = nil, c.take(3)
		m, slots, err = s.twin()
	}
	if err != nil {
		return nil, fmt.Errorf("%v -window %d: the twin: %w", c, c.window, err)
	}
	c.base, c.slots = m, slots
	if c.window%5 == 0 {
		return c.recovering(s, rng.Uint64())
	}
	return s, nil
}

// recovering returns a script that mounts what a power cut in the middle of s left, makes a directory, and unmounts.
func (c *chain) recovering(s *script, seed uint64) (*script, error) {
	m, err := s.interrupted(chance(seed))
	if err != nil {
		return nil, fmt.Errorf("%v -window %d: power cut: %w", c, c.window, err)
	}
	r := &script{layout: c.layout, base: m, slots: make([]slot, diff.Slots), mount: true,
		steps: []diff.Op{{Kind: diff.OpMkdir, Path: "recovered", Mode: 0o755}, {Kind: diff.OpSync}}}
	if _, _, err := r.twin(); err != nil {
		return nil, fmt.Errorf("%v -window %d: the twin of a mount after a power cut: %w", c, c.window, err)
	}
	return r, nil
}
