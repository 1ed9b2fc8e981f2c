package extent

// Convert makes everything mapped in [l, l+n) unwritten or written; holes stay. Blocks that are in that state already are
// left alone. It may need new nodes; after an error a part at the front may be converted.
func (t *Tree) Convert(l, n uint32, unwritten bool) error {
	if uint64(l)+uint64(n) > MaxBlock {
		return ErrRange
	}
	end := l + n
	for l < end {
		next, err := t.convertPiece(l, end, unwritten)
		if err != nil {
			return err
		}
		l = next
	}
	return t.shrink()
}

// convertPiece converts what one extent has of [l, end). It returns where to go on, which is l itself after a split.
func (t *Tree) convertPiece(l, end uint32, unwritten bool) (uint32, error) {
	var p path
	defer p.release()
	if err := t.find(&p, l); err != nil {
		return l, err
	}
	x, ok, err := p.current()
	if err != nil {
		return l, err
	}
	if !ok || x.End() <= l {
		return p.next(), nil
	}
	if x.Unwritten == unwritten {
		return x.End(), nil
	}
	end = min(end, x.End())
	if end-l > maxLen(unwritten) {
		end = l + maxLen(unwritten)
	}
	mid := x.from(l).upTo(end)
	mid.Unwritten = unwritten

	// The usual case, a file that is written into its preallocation front to back, only moves a boundary.
	if done, err := p.moveBoundary(x, mid); done || err != nil {
		return end, err
	}
	if x.Lblk == l && x.End() == end {
		lv := p.leaf()
		lv.n.setExtent(lv.pos, mid) // a neighbour that could take it would have
		return end, p.dirty(p.d)
	}
	p.release()
	if err := t.splitAt(end); err != nil {
		return l, err
	}
	return l, t.splitAt(l)
}

// moveBoundary gives mid, a part of extent x at the path's position, to the neighbour that it joins, if there is one.
func (p *path) moveBoundary(x, mid Extent) (bool, error) {
	lv := p.leaf()
	i := lv.pos
	if mid.Lblk == x.Lblk && i > 0 {
		prev := lv.n.extent(i - 1)
		if prev.joins(mid) && prev.Len+mid.Len <= mid.limit() {
			prev.Len += mid.Len
			lv.n.setExtent(i-1, prev)
			if mid.End() < x.End() {
				lv.n.setExtent(i, x.from(mid.End()))
				return true, p.dirty(p.d)
			}
			lv.n.remove(i, i+1)
			return true, p.merge(i - 1)
		}
	}
	if mid.End() == x.End() && i+1 < lv.n.entries() {
		next := lv.n.extent(i + 1)
		if mid.joins(next) && mid.Len+next.Len <= mid.limit() {
			mid.Len += next.Len
			lv.n.setExtent(i+1, mid)
			if mid.Lblk > x.Lblk {
				lv.n.setExtent(i, x.upTo(mid.Lblk))
				return true, p.dirty(p.d)
			}
			lv.n.remove(i, i+1)
			return true, p.dirty(p.d)
		}
	}
	return false, nil
}
