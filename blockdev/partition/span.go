package partition

import (
	"cmp"
	"fmt"

	"github.com/lanefs/lanefs/blockdev"
)

// span is blocks that a partition has, or a table of an extended one.
type span struct {
	number      int // 0: a table
	first, last uint64
	id, name    string
	why         string // it cannot be used; empty: it can
}

func (s *span) String() string {
	if s.number == 0 {
		return fmt.Sprintf("the table in block %d", s.first)
	}
	return fmt.Sprintf("partition %d", s.number)
}

// within refuses it unless it lies in the blocks from low to high.
func (s *span) within(low, high uint64) {
	if s.first < low || s.last > high || s.first > s.last {
		s.why = fmt.Sprintf("%v has the blocks %d to %d, and may have %d to %d", s, s.first, s.last, low, high)
	}
}

func (s *span) meets(o *span) bool { return s.first <= o.last && o.first <= s.last }

// spans are what a table has, in its order.
type spans []*span

// overlaps refuses each that has blocks in common with another, but for those that are refused by now: nobody uses them.
func (all spans) overlaps() {
	var inside spans
	for _, s := range all {
		if s.why == "" {
			inside = append(inside, s)
		}
	}
	for i, s := range inside {
		for _, o := range inside[:i] {
			if s.meets(o) {
				o.why, s.why = cmp.Or(o.why, both(o, s)), cmp.Or(s.why, both(o, s)) // the first of several
			}
		}
	}
}

func both(one, two *span) string { return fmt.Sprintf("%v and %v overlap", one, two) }

// put adds the partitions to a table.
func (all spans) put(t *Table) {
	for _, s := range all {
		if s.number == 0 {
			continue
		}
		p := Part{Number: s.number, First: blockdev.LBA(s.first), ID: s.id, Name: s.name}
		if s.last >= s.first {
			p.Blocks = blockdev.Blocks(s.last - s.first + 1)
		}
		if s.why != "" {
			t.Refused = append(t.Refused, Refused{p, s.why})
		} else {
			t.Parts = append(t.Parts, p)
		}
	}
}
