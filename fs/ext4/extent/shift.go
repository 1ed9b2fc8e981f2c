package extent

// Collapse moves the extents at and after logical block from down by n blocks, into a hole before them that the caller
// has made: the second half of FALLOC_FL_COLLAPSE_RANGE. It ends early after limit leaves; what it returns is where the
// caller goes on, MaxBlock when done.
func (t *Tree) Collapse(from, n uint32, limit int) (uint32, error) {
	if n == 0 || from < n {
		return from, ErrRange
	}
	for ; from < MaxBlock; limit-- {
		if limit <= 0 {
			return from, nil
		}
		next, err := t.collapseLeaf(from, n)
		if err != nil {
			return from, err
		}
		from = next
	}
	return from, t.shrink()
}

func (t *Tree) collapseLeaf(from, n uint32) (uint32, error) {
	if x, ok, err := t.Next(from - n); err != nil {
		return from, err
	} else if !ok {
		return MaxBlock, nil
	} else if x.Lblk < from {
		return from, ErrMapped
	}
	var p path
	defer p.release()
	if err := t.find(&p, from); err != nil {
		return from, err
	}
	lv := p.leaf()
	i := max(lv.pos, 0)
	if lv.pos >= 0 && lv.n.key(i) < from {
		i++
	}
	next := lv.hi // the key of the next leaf, which is not moved yet
	if i >= lv.n.entries() {
		return next, nil
	}
	for k := i; k < lv.n.entries(); k++ {
		if err := t.checkExtent(p.block(p.d), lv.n.extent(k)); err != nil {
			return from, err
		}
	}
	for k := i; k < lv.n.entries(); k++ {
		lv.n.setKey(k, lv.n.key(k)-n)
	}
	p.joinNext(max(i-1, 0))
	return next, p.changed(p.d, i)
}

// Expand moves the extents in [from, to) up by n blocks, starting with the last: FALLOC_FL_INSERT_RANGE. The caller
// begins with to = MaxBlock, and knows that nothing moves past the largest file. It ends early after limit leaves; what
// it returns is the new to, from when done.
func (t *Tree) Expand(from, to, n uint32, limit int) (uint32, error) {
	if n == 0 || from > to {
		return to, ErrRange
	}
	if err := t.splitAt(from); err != nil {
		return to, err
	}
	if to == MaxBlock {
		if last, ok, err := t.Last(); err != nil {
			return to, err
		} else if ok && last.Lblk >= from && uint64(last.End())+uint64(n) > MaxBlock {
			return to, ErrRange
		}
	}
	for ; to > from; limit-- {
		if limit <= 0 {
			return to, nil
		}
		next, err := t.expandLeaf(from, to, n)
		if err != nil {
			return to, err
		}
		to = next
	}
	return to, nil
}

func (t *Tree) expandLeaf(from, to, n uint32) (uint32, error) {
	var p path
	defer p.release()
	if err := t.find(&p, to-1); err != nil {
		return to, err
	}
	lv := p.leaf()
	if lv.pos < 0 {
		if lv.lo < to {
			return max(from, lv.lo), nil
		}
		return from, nil
	}
	i := lv.pos + 1
	for i > 0 && lv.n.key(i-1) >= from {
		i--
		if err := t.checkExtent(p.block(p.d), lv.n.extent(i)); err != nil {
			return to, err
		}
	}
	if i > lv.pos {
		return from, nil
	}
	next := from
	if i == 0 {
		next = lv.n.key(0)
	}
	for k := i; k <= lv.pos; k++ {
		if uint64(lv.n.key(k))+uint64(n) > MaxBlock {
			return to, ErrRange
		}
		lv.n.setKey(k, lv.n.key(k)+n)
	}
	return next, p.changed(p.d, i)
}
