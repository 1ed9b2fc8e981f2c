package extent

import "github.com/lanefs/lanefs/fs/ext4/disk"

// level is one node on the way from the root to a leaf.
type level struct {
	buf Node // nil for the root
	n   node
	pos int // entry followed; in the leaf the last one that starts at or before the target, -1 when there is none
	lo  uint32
	hi  uint32 // keys below this node are in [lo, hi)
}

// path is the way to the leaf that holds, or would hold, one logical block.
type path struct {
	t  *Tree
	lv [MaxDepth + 2]level // one more than the deepest tree: grow shifts before it checks
	d  int                 // depth: lv[d] is the leaf
}

func (p *path) leaf() *level { return &p.lv[p.d] }

func (p *path) release() {
	for i := range p.lv {
		if p.lv[i].buf != nil {
			p.lv[i].buf.Put()
			p.lv[i].buf = nil
		}
	}
}

// find descends to the leaf for logical block l. The caller releases the path, also after an error.
func (t *Tree) find(p *path, l uint32) error {
	p.release()
	p.t = t
	if err := t.checkRoot(); err != nil {
		return err
	}
	p.d = node(t.Root).depth()
	p.lv[0] = level{n: node(t.Root), hi: MaxBlock}
	for i := 0; ; i++ {
		lv := &p.lv[i]
		lv.pos = lv.n.search(l)
		if i == p.d {
			return nil
		}
		if lv.pos < 0 {
			lv.pos = 0 // before the first key: the leftmost leaf would hold it
		}
		lo, hi := lv.n.key(lv.pos), lv.hi
		if lv.pos+1 < lv.n.entries() {
			hi = lv.n.key(lv.pos + 1)
		}
		buf, err := t.load(lv.n.child(lv.pos), p.d-i-1, lo, hi)
		if err != nil {
			return err
		}
		p.lv[i+1] = level{buf: buf, n: node(buf.Data()), lo: lo, hi: hi}
	}
}

// current is the extent at the leaf's position, checked against its neighbour; false when there is none.
func (p *path) current() (Extent, bool, error) {
	lv := p.leaf()
	if lv.pos < 0 || lv.pos >= lv.n.entries() {
		return Extent{}, false, nil
	}
	x := lv.n.extent(lv.pos)
	if err := p.t.checkExtent(p.block(p.d), x); err != nil {
		return Extent{}, false, err
	}
	if x.End() > p.next() {
		return Extent{}, false, p.t.corrupt(p.block(p.d), "extent at logical block %d overlaps the next", x.Lblk)
	}
	return x, true, nil
}

// next is where the extent after the leaf's position can begin at the earliest.
func (p *path) next() uint32 {
	lv := p.leaf()
	if lv.pos+1 < lv.n.entries() {
		return lv.n.key(lv.pos + 1)
	}
	return lv.hi
}

func (p *path) block(l int) disk.Block {
	if p.lv[l].buf == nil {
		return 0
	}
	return p.lv[l].buf.Block()
}

// dirty seals the node at level l and reports it.
func (p *path) dirty(l int) error {
	if p.lv[l].buf == nil {
		return p.t.Nodes.RootDirty()
	}
	return p.t.dirtyNode(p.lv[l].buf)
}

func (t *Tree) dirtyNode(buf Node) error {
	if t.Checksums {
		disk.SetExtentBlockCsum(t.Seed, buf.Data())
	}
	return t.Nodes.Dirty(buf)
}

// rekey makes the keys above level l exact after its first entry changed.
func (p *path) rekey(l int) error {
	key := p.lv[l].n.key(0)
	for l--; l >= 0; l-- {
		lv := &p.lv[l]
		if lv.n.key(lv.pos) == key {
			return nil
		}
		lv.n.setKey(lv.pos, key)
		if err := p.dirty(l); err != nil {
			return err
		}
		if lv.pos > 0 {
			return nil
		}
	}
	return nil
}

// changed is dirty and, when the first entry is among what changed, rekey.
func (p *path) changed(l, first int) error {
	if err := p.dirty(l); err != nil {
		return err
	}
	if first == 0 && p.lv[l].n.entries() > 0 {
		return p.rekey(l)
	}
	return nil
}

// drop removes the entries [i, j) at level l, and with the last entry the node itself.
func (p *path) drop(l, i, j int) error {
	lv := &p.lv[l]
	lv.n.remove(i, j)
	if lv.n.entries() > 0 {
		return p.changed(l, i)
	}
	if l == 0 {
		lv.n.setDepth(0)
		return p.dirty(0)
	}
	b := lv.buf.Block()
	if err := p.drop(l-1, p.lv[l-1].pos, p.lv[l-1].pos+1); err != nil {
		return err
	}
	return p.t.Nodes.Free(b)
}
