package jbd2

import (
	"cmp"
	"fmt"
	"slices"
)

// MapFunc says where block n of the journal lies: at phys, followed by count-1 neighbours that belong to n+1 and on.
type MapFunc func(n uint32) (phys Block, count uint32, err error)

// logMap is the whole of a MapFunc: the journal's runs on the volume, in the journal's order.
type logMap struct {
	runs   []logRun
	byPhys []logRun
}

type logRun struct {
	logical uint32
	phys    Block
	count   uint32
}

// newLogMap maps blocks 0 ≤ n < length. volume is the number of blocks of the volume.
func newLogMap(length uint32, volume Block, f MapFunc) (*logMap, error) {
	m := &logMap{}
	for n := uint32(0); n < length; {
		phys, count, err := f(n)
		if err != nil {
			return nil, fmt.Errorf("block %d of the journal: %w", n, err)
		}
		if count == 0 {
			return nil, fmt.Errorf("%w: block %d of the journal is not mapped", ErrCorrupt, n)
		}
		count = min(count, length-n)
		if phys == 0 || phys >= volume || uint64(count) > uint64(volume-phys) {
			return nil, fmt.Errorf("%w: block %d of the journal is mapped to block %d, outside of the volume's %d", ErrCorrupt, n, phys, volume)
		}
		m.runs = append(m.runs, logRun{n, phys, count})
		n += count
	}
	m.byPhys = slices.Clone(m.runs)
	slices.SortFunc(m.byPhys, func(a, b logRun) int { return cmp.Compare(a.phys, b.phys) })
	for i := 1; i < len(m.byPhys); i++ {
		if a, b := m.byPhys[i-1], m.byPhys[i]; a.phys+Block(a.count) > b.phys {
			return nil, fmt.Errorf("%w: blocks %d and %d of the journal overlap on the volume", ErrCorrupt, a.logical, b.logical)
		}
	}
	return m, nil
}

// at is where block n lies, and how many from there on lie side by side.
func (m *logMap) at(n uint32) (Block, uint32) {
	i, ok := slices.BinarySearchFunc(m.runs, n, func(r logRun, n uint32) int { return cmp.Compare(r.logical, n) })
	if !ok {
		i--
	}
	r := m.runs[i]
	return r.phys + Block(n-r.logical), r.count - (n - r.logical)
}

// holds says whether block b of the volume is part of the journal.
func (m *logMap) holds(b Block) bool {
	i, ok := slices.BinarySearchFunc(m.byPhys, b, func(r logRun, b Block) int { return cmp.Compare(r.phys, b) })
	if ok {
		return true
	}
	return i > 0 && b-m.byPhys[i-1].phys < Block(m.byPhys[i-1].count)
}
