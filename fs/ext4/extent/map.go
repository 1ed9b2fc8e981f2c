package extent

// Map says what lies at logical block l: the part from l of the extent there, or the hole up to the next extent, at most
// max blocks.
func (t *Tree) Map(l, max uint32) (Extent, error) {
	if max == 0 {
		return Extent{}, ErrRange
	}
	x, err := t.Find(l)
	if err != nil {
		return Extent{}, err
	}
	return x.Part(l, max), nil
}

// Find is the whole extent in which logical block l lies, or the hole from l up to the next extent.
func (t *Tree) Find(l uint32) (Extent, error) {
	if l >= MaxBlock {
		return Extent{}, ErrRange
	}
	var p path
	defer p.release()
	if err := t.find(&p, l); err != nil {
		return Extent{}, err
	}
	x, ok, err := p.current()
	if err != nil {
		return Extent{}, err
	}
	if ok && l < x.End() {
		return x, nil
	}
	// next is past l: the leaf's entry at pos+1 starts after l, and so does whatever bounds the leaf.
	return Extent{Lblk: l, Len: p.next() - l}, nil
}

// MapRange calls f for everything in [l, end), extents and holes in order, until f returns an error. Holes of
// neighbouring leaves may come in pieces. f must not change the tree.
func (t *Tree) MapRange(l, end uint32, f func(Extent) error) error {
	for l < end {
		x, err := t.Map(l, end-l)
		if err != nil {
			return err
		}
		if err := f(x); err != nil {
			return err
		}
		l = x.End()
	}
	return nil
}

// Last finds the extent with the highest logical blocks; false when the tree is empty.
func (t *Tree) Last() (Extent, bool, error) {
	var p path
	defer p.release()
	if err := t.find(&p, MaxBlock-1); err != nil {
		return Extent{}, false, err
	}
	return p.current()
}
