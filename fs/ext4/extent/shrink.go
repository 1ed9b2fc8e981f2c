package extent

// What makes a tree smaller again after a removal.

// tidy joins what is nearly empty around logical block l, then brings a last child into the root.
func (t *Tree) tidy(l uint32) error {
	for range MaxDepth + 1 {
		joined, err := t.joinNodes(l)
		if err != nil {
			return err
		}
		if !joined {
			break
		}
	}
	return t.shrink()
}

// joinNodes joins one node on the way to logical block l with a neighbour below the same parent: a node that is a quarter
// full at most, if both together leave room in one. It reports whether there was such a node.
func (t *Tree) joinNodes(l uint32) (bool, error) {
	var p path
	defer p.release()
	if err := t.find(&p, l); err != nil {
		return false, err
	}
	for k := p.d; k > 0; k-- {
		if n := p.lv[k].n; n.entries() == 0 || n.entries() > n.max()/4 {
			continue
		}
		for _, left := range []int{p.lv[k-1].pos - 1, p.lv[k-1].pos} {
			if joined, err := p.joinPair(k, left); joined || err != nil {
				return joined, err
			}
		}
	}
	return false, nil
}

// joinPair moves the entries of the node after the one at entry left of level k-1 into that one, if both exist and fit.
// One of the two is on the path. The path is stale after it.
func (p *path) joinPair(k, left int) (bool, error) {
	up := &p.lv[k-1]
	if left < 0 || left+1 >= up.n.entries() {
		return false, nil
	}
	other := left
	if other == up.pos {
		other++
	}
	hi := up.hi // a sibling's keys end where the next one's begin
	if other+1 < up.n.entries() {
		hi = up.n.key(other + 1)
	}
	sibling, err := p.t.load(up.n.child(other), p.lv[k].n.depth(), up.n.key(other), hi)
	if err != nil {
		return false, err
	}
	defer sibling.Put()
	a, b := p.lv[k].buf, sibling
	if other == left {
		a, b = b, a
	}
	n, m := node(a.Data()), node(b.Data())
	c, d := n.entries(), m.entries()
	if c+d > n.max()*3/4 {
		return false, nil
	}
	n.setEntries(c + d)
	copy(n.span(c, c+d), m.span(0, d))
	if err := p.t.dirtyNode(a); err != nil {
		return false, err
	}
	gone := b.Block()
	if err := p.drop(k-1, left+1, left+2); err != nil {
		return false, err
	}
	return true, p.t.Nodes.Free(gone)
}

// shrink brings the entries of a single child into the root as long as they fit there.
func (t *Tree) shrink() error {
	root := node(t.Root)
	for root.depth() > 0 && root.entries() == 1 {
		b := root.child(0)
		buf, err := t.load(b, root.depth()-1, root.key(0), MaxBlock)
		if err != nil {
			return err
		}
		n := node(buf.Data())
		c := n.entries()
		if c > root.max() {
			buf.Put()
			return nil
		}
		root.remove(0, 1)
		root.setDepth(n.depth())
		root.setEntries(c)
		copy(root.span(0, c), n.span(0, c))
		buf.Put()
		if err := t.Nodes.RootDirty(); err != nil {
			return err
		}
		if err := t.Nodes.Free(b); err != nil {
			return err
		}
	}
	return nil
}
