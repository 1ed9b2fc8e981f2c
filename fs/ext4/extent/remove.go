package extent

// Remove unmaps the logical blocks [from, to), from the end backwards, and calls freed with each run of them that was
// mapped, after it left the tree. It ends early after limit extents, so that a transaction does not grow without bound:
// what it returns is the new end, and the caller goes on with Remove(from, end, …) until end is from.
//
// Removing the middle of an extent can need a new node; nothing is removed if there is none.
func (t *Tree) Remove(from, to uint32, limit int, freed func(Extent) error) (uint32, error) {
	if from >= to {
		return from, nil
	}
	// An extent that goes on after to is cut there first; one that begins before from is shortened in place.
	if err := t.splitAt(to); err != nil {
		return to, err
	}
	right := to
	for to > from && limit > 0 {
		n, end, err := t.removeLeaf(from, to, limit, freed)
		if err != nil {
			return to, err
		}
		to = end
		limit -= max(n, 1)
	}
	if err := t.tidy(max(to, 1) - 1); err != nil {
		return to, err
	}
	return to, t.tidy(min(right, MaxBlock-1))
}

// removeLeaf removes what one leaf has of [from, to), at most limit extents. It returns how many, and the new end.
func (t *Tree) removeLeaf(from, to uint32, limit int, freed func(Extent) error) (int, uint32, error) {
	var p path
	defer p.release()
	if err := t.find(&p, to-1); err != nil {
		return 0, to, err
	}
	if _, ok, err := p.current(); err != nil {
		return 0, to, err
	} else if !ok {
		// Nothing before to in this leaf. Keys are exact, so it is the leftmost; a tree made by others may go on.
		if lo := p.leaf().lo; lo < to {
			return 0, max(from, lo), nil
		}
		return 0, from, nil
	}

	lv := p.leaf()
	end := to
	j := lv.pos + 1 // entries [i, j) go
	i := j
	cut := false // entry i-1 is shortened
	var out []Extent
	for i > 0 && len(out) < limit && end > from {
		x := lv.n.extent(i - 1)
		if err := t.checkExtent(p.block(p.d), x); err != nil {
			return 0, to, err
		}
		switch {
		case x.End() <= from:
			end = from
		case x.Lblk < from:
			out = append(out, x.from(from))
			lv.n.setExtent(i-1, x.upTo(from))
			cut = true
			end = from
		default:
			out = append(out, x)
			end = x.Lblk
			i--
		}
	}
	var err error
	switch {
	case i < j:
		err = p.drop(p.d, i, j)
	case cut:
		err = p.dirty(p.d)
	}
	if err != nil {
		return 0, to, err
	}
	for _, x := range out {
		if err := freed(x); err != nil {
			return 0, to, err
		}
	}
	return len(out), end, nil
}
