package diff

import (
	"fmt"
	"math/rand/v2"
)

// Profile says what kind of sequence to make.
type Profile string

// The profiles.
const (
	ProfileData   Profile = "data"   // the bytes of a few files, in every way to read and write them
	ProfileDirect Profile = "direct" // the same for LaneFS's ext4 package without FUSE
	ProfileNames  Profile = "names"  // names, attributes, permissions
	ProfileShared Profile = "shared" // several processes in the same directories
)

// Generate makes the sequence of n Ops that follows from a profile, a seed and a process number, and from nothing else.
func Generate(profile Profile, seed uint64, proc, n int) []Op {
	g := &gen{rng: rand.New(rand.NewPCG(seed, uint64(proc)<<8|uint64(len(profile)))), proc: proc}
	var next func() Op
	switch profile {
	case ProfileData, ProfileDirect:
		next = newDataGen(g, profile == ProfileDirect).next
	case ProfileNames:
		next = newNamesGen(g).next
	case ProfileShared:
		next = newSharedGen(g).next
	default:
		panic(fmt.Sprintf("no profile %q", profile))
	}
	ops := make([]Op, n)
	for i := range ops {
		ops[i] = next()
	}
	return ops
}

// gen is the random source of a generator.
type gen struct {
	rng   *rand.Rand
	proc  int
	seeds uint32
}

func (g *gen) one(of int) bool      { return g.rng.IntN(of) == 0 }
func (g *gen) slot() int            { return g.rng.IntN(Slots) }
func (g *gen) seed() uint32         { g.seeds++; return g.seeds }
func (g *gen) upTo(n int64) int64   { return g.rng.Int64N(n + 1) }
func pick[T any](g *gen, of ...T) T { return of[g.rng.IntN(len(of))] }

// choice is an Op that a generator may make, and its weight.
type choice struct {
	weight int
	make   func() Op
}

type choices struct {
	list  []choice
	total int
}

func newChoices(list []choice) choices {
	c := choices{list: list}
	for _, x := range list {
		c.total += x.weight
	}
	return c
}

func (c *choices) next(g *gen) Op {
	k := g.rng.IntN(c.total)
	for _, x := range c.list {
		if k -= x.weight; k < 0 {
			return x.make()
		}
	}
	panic("weights do not add up")
}
