package extent

import "github.com/lanefs/lanefs/fs/ext4/disk"

// Making room. prepare allocates every node that one new entry can need, before anything changes; insertEntry then
// cannot fail for want of blocks.

// prepare makes sure that a new entry at the leaf finds room: it returns one new node for each node that will split.
// It may make the tree deeper, which leaves it valid, and moves the path along.
func (p *path) prepare() ([]Node, error) {
	for {
		full := 0
		for full <= p.d && p.lv[p.d-full].n.full() {
			full++
		}
		for l := p.d; l >= 0 && l > p.d-full; l-- {
			if p.lv[l].n.max() < 2 {
				return nil, p.t.corrupt(p.block(l), "eh_max is %d, too small to split", p.lv[l].n.max())
			}
		}
		if full <= p.d {
			return p.allocNodes(full)
		}
		if err := p.grow(); err != nil {
			return nil, err
		}
	}
}

func (p *path) allocNodes(n int) ([]Node, error) {
	var got []Node
	for range n {
		buf, err := p.t.Nodes.Alloc(p.goal())
		if err != nil {
			for _, g := range got {
				b := g.Block()
				g.Put()
				if ferr := p.t.Nodes.Free(b); ferr != nil {
					return nil, ferr
				}
			}
			return nil, err
		}
		got = append(got, buf)
	}
	return got, nil
}

// goal is where a new node would lie best: next to its siblings, else next to the data.
func (p *path) goal() disk.Block {
	if b := p.block(p.d); b != 0 {
		return b + 1
	}
	if lv := p.leaf(); lv.n.entries() > 0 && lv.n.depth() == 0 {
		return lv.n.extent(max(lv.pos, 0)).Pblk
	}
	return 0
}

// grow moves the entries of the root into a new node, which the root then points to.
func (p *path) grow() error {
	if p.d >= MaxDepth {
		return p.t.corrupt(0, "full at depth %d", p.d)
	}
	buf, err := p.t.Nodes.Alloc(p.goal())
	if err != nil {
		return err
	}
	root, n := p.lv[0].n, node(buf.Data())
	n.format(root.depth())
	n.setEntries(root.entries())
	copy(n.span(0, root.entries()), root.span(0, root.entries()))
	buf.SetVerified()

	root.setDepth(root.depth() + 1)
	root.remove(0, root.entries())
	root.insert(0, indexEntry(n.key(0), buf.Block()))

	copy(p.lv[2:], p.lv[1:p.d+1])
	p.lv[1] = level{buf: buf, n: n, pos: p.lv[0].pos, lo: p.lv[0].lo, hi: p.lv[0].hi}
	p.lv[0].pos = 0
	p.d++
	if err := p.dirty(1); err != nil {
		return err
	}
	return p.dirty(0)
}

// insertEntry puts e at position i of the node at level l, splitting it and those above as needed. After a split the
// path is stale. It uses the nodes of spare that it needs, which stay the caller's to Put; there are as many as nodes
// are full.
//
// A full node splits where the entry goes if that leaves it at least half full, else in the middle. So a file that grows
// fills its leaves, at its end and wherever else it grows.
func (p *path) insertEntry(l, i int, e entry, spare []Node) error {
	lv := &p.lv[l]
	if !lv.n.full() {
		lv.n.insert(i, e)
		return p.changed(l, i)
	}
	buf := spare[0]
	c := lv.n.entries()
	cut := max(i, c/2)
	n := node(buf.Data())
	n.format(lv.n.depth())
	n.setEntries(c - cut)
	copy(n.span(0, c-cut), lv.n.span(cut, c))
	lv.n.remove(cut, c)
	if i < cut {
		lv.n.insert(i, e)
	} else {
		n.insert(i-cut, e)
	}
	buf.SetVerified()
	if err := p.t.dirtyNode(buf); err != nil {
		return err
	}
	if err := p.changed(l, i); err != nil {
		return err
	}
	return p.insertEntry(l-1, p.lv[l-1].pos+1, indexEntry(n.key(0), buf.Block()), spare[1:])
}
