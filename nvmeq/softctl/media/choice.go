package media

import (
	"fmt"
	"math/rand/v2"
)

// choice is which blocks of the open operations a power cut left on the medium, and in which order they went there.
// Drawing every block by itself would hardly ever give the states in which journals break, such as all but one or a
// prefix; so a shape is drawn first.
type choice struct {
	shape shape
	order []int // candidates in the order in which they reached the medium
	r     *rand.Rand
	whole []bool // shapes that take an operation or leave it
	torn  int    // the one operation of which part is there, -1 for none
	part  float64
	chunk int64 // torn at multiples of so many blocks
}

type shape uint8

const (
	shapeAll      shape = iota // everything that completed, nothing more
	shapeNone                  // nothing since the flush
	shapePrefix                // up to some operation, which is torn
	shapeSubset                // some operations, in order
	shapeShuffled              // some operations, in any order
	shapeAllBut                // everything but one operation, which is torn
	shapeOnly                  // one operation only
	shapeBlocks                // every block by itself, in any order
	shapes
)

var shapeNames = [shapes]string{"all", "none", "prefix", "subset", "shuffled subset", "all but one", "only one", "single blocks"}

func newChoice(r *rand.Rand, n, done int) *choice {
	c := &choice{shape: shape(r.IntN(int(shapes))), r: r, whole: make([]bool, n), torn: -1, part: r.Float64(), chunk: 1 << r.IntN(5)}
	c.order = make([]int, n)
	for i := range c.order {
		c.order[i] = i
	}
	if n == 0 {
		return c
	}
	one := r.IntN(n)
	for i := range c.whole {
		switch c.shape {
		case shapeAll:
			c.whole[i] = i < done
		case shapePrefix:
			c.whole[i] = i < one
		case shapeSubset, shapeShuffled:
			c.whole[i] = r.Float64() < c.part
		case shapeAllBut:
			c.whole[i] = i != one
		}
	}
	switch c.shape {
	case shapePrefix, shapeAllBut, shapeOnly:
		c.torn = one
	case shapeShuffled, shapeBlocks:
		r.Shuffle(n, func(i, j int) { c.order[i], c.order[j] = c.order[j], c.order[i] })
	}
	if c.shape == shapeOnly && r.IntN(2) == 0 {
		c.part = 1
	}
	return c
}

// keep says whether block b of n of candidate k is on the medium. It is asked once for each, in order.
func (c *choice) keep(k int, b, n int64) bool {
	switch {
	case c.whole[k]:
		return true
	case c.shape == shapeBlocks:
		return c.r.Float64() < c.part
	case k == c.torn:
		return float64(b/c.chunk*c.chunk) < c.part*float64(n)
	}
	return false
}

func (c *choice) String() string {
	if c.torn >= 0 {
		return fmt.Sprintf("%s (%d, torn at %.0f%%)", shapeNames[c.shape], c.torn, 100*c.part)
	}
	return shapeNames[c.shape]
}
