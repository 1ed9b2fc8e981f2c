package extent

// Insert maps a hole: the blocks of x, joined with its neighbours where they continue one another. An x longer than an
// extent can be becomes several. It returns how many blocks are mapped, which is less than x.Len only with an error.
func (t *Tree) Insert(x Extent) (uint32, error) {
	if x.Len == 0 || uint64(x.Lblk)+uint64(x.Len) > MaxBlock {
		return 0, ErrRange
	}
	if !t.validRange(x.Pblk, x.Len) {
		return 0, t.corrupt(0, "blocks %d+%d are not a file's", x.Pblk, x.Len)
	}
	done := uint32(0)
	for done < x.Len {
		n, err := t.insertPiece(x.from(x.Lblk + done))
		if err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// insertPiece maps as much of x as one change can take.
func (t *Tree) insertPiece(x Extent) (uint32, error) {
	var p path
	defer p.release()
	if err := t.find(&p, x.Lblk); err != nil {
		return 0, err
	}
	prev, havePrev, err := p.current()
	if err != nil {
		return 0, err
	}
	if havePrev && prev.End() > x.Lblk {
		return 0, ErrMapped
	}
	lv := p.leaf()
	i := lv.pos + 1
	if next := p.next(); x.End() > next {
		if i < lv.n.entries() {
			return 0, ErrMapped
		}
		x = x.upTo(next) // the rest belongs to the next leaf
	}

	if havePrev && prev.joins(x) && prev.Len < prev.limit() {
		n := min(x.Len, prev.limit()-prev.Len)
		prev.Len += n
		lv.n.setExtent(lv.pos, prev)
		if n == x.Len {
			return n, p.merge(lv.pos)
		}
		return n, p.dirty(p.d)
	}
	if i < lv.n.entries() {
		next := lv.n.extent(i)
		if x.joins(next) && x.Len+next.Len <= next.limit() {
			n := x.Len
			x.Len += next.Len
			lv.n.setExtent(i, x)
			return n, p.changed(p.d, i)
		}
	}
	x.Len = min(x.Len, x.limit())
	return x.Len, p.add(x)
}

// add puts x into the leaf after the path's position. The path is stale after it.
func (p *path) add(x Extent) error {
	spare, err := p.prepare()
	if err != nil {
		return err
	}
	defer putAll(spare)
	return p.insertEntry(p.d, p.leaf().pos+1, leafEntry(x), spare)
}

// merge joins entry i of the leaf, which changed, with the next if they may be one, and reports the change.
func (p *path) merge(i int) error {
	n := p.leaf().n
	if i+1 < n.entries() {
		a, b := n.extent(i), n.extent(i+1)
		if a.joins(b) && a.Len+b.Len <= a.limit() {
			a.Len += b.Len
			n.setExtent(i, a)
			n.remove(i+1, i+2)
		}
	}
	return p.changed(p.d, i)
}

// splitAt makes logical block l the start of an extent, if it lies inside one.
func (t *Tree) splitAt(l uint32) error {
	if l >= MaxBlock {
		return nil
	}
	var p path
	defer p.release()
	if err := t.find(&p, l); err != nil {
		return err
	}
	x, ok, err := p.current()
	if err != nil || !ok || x.Lblk == l || x.End() <= l {
		return err
	}
	spare, err := p.prepare()
	if err != nil {
		return err
	}
	defer putAll(spare)
	lv := p.leaf()
	lv.n.setExtent(lv.pos, x.upTo(l))
	return p.insertEntry(p.d, lv.pos+1, leafEntry(x.from(l)), spare)
}

func putAll(nodes []Node) {
	for _, n := range nodes {
		n.Put()
	}
}
