package dir

import (
	"cmp"
	"slices"
)

// piece is a live entry of a leaf that is taken apart.
type piece struct {
	hash uint32
	off  int
	size int // of a record just large enough
}

// pieces lists the live entries of a leaf from off on.
func (d *Dir) pieces(lblk uint32, data []byte, off int, hash *Hash) ([]piece, error) {
	end := d.leafEnd()
	out := make([]piece, 0, (end-off)/recMin)
	for off < end {
		r, why := d.rec(data, off, end)
		if why != "" {
			return nil, d.corrupt(lblk, off, "%s", why)
		}
		if r.ino != 0 {
			h, _ := hash.Sum(string(data[off+recHeader : off+recHeader+r.nameLen]))
			out = append(out, piece{h, off, recSize(r.nameLen)})
		}
		off += r.size
	}
	return out, nil
}

// fill makes dst a leaf of the given entries of src, which is another block.
func (d *Dir) fill(dst, src []byte, pieces []piece) {
	d.emptyLeaf(dst)
	at, last := 0, 0
	for _, p := range pieces {
		copy(dst[at:], src[p.off:p.off+p.size])
		putRecLen(dst[at:], p.size)
		last = at
		at += p.size
	}
	if at > 0 {
		putRecLen(dst[last:], d.leafEnd()-last)
	}
}

// makeIndex turns a directory of one block into an indexed one: its entries move to a new leaf, the block becomes the
// index's root.
func (d *Dir) makeIndex(s Store) error {
	b, err := d.leaf(s, 0)
	if err != nil {
		return err
	}
	defer b.Put()
	data := b.Data()
	if why := d.checkDots(data, d.leafEnd()); why != "" {
		return d.corrupt(0, 0, "%s", why)
	}
	start := recMin + getRecLen(data[recMin:], d.blockSize)
	hash := d.hash
	pieces, err := d.pieces(0, data, start, &hash)
	if err != nil {
		return err
	}
	lblk, leaf, err := s.Append()
	if err != nil {
		return err
	}
	defer leaf.Put()
	d.fill(leaf.Data(), data, pieces)
	d.leafChanged(s, leaf)

	s.Change(b)
	putRecLen(data[recMin:], d.blockSize-recMin)
	clear(data[rootInfo:])
	data[rootInfo+4] = d.hash.Version
	data[rootInfo+5] = rootEntries - rootInfo
	root := node{b: b, data: data, entries: rootEntries, limit: d.limitOf(rootEntries)}
	root.set(0, 0, lblk)
	root.setCount(1)
	d.nodeChanged(s, &root)
	s.SetIndexed()
	return nil
}

// splitLeaf moves the upper half, by hash, of the cursor's leaf to a new one. The node above has room for it.
func (d *Dir) splitLeaf(s Store, c *cursor, b Block, lblk uint32) error {
	data := b.Data()
	pieces, err := d.pieces(lblk, data, 0, &c.hash)
	if err != nil {
		return err
	}
	old := slices.Clone(data)
	if len(pieces) < 2 { // it is full of crumbs, which no driver leaves
		s.Change(b)
		d.fill(data, old, pieces)
		d.leafChanged(s, b)
		return nil
	}
	slices.SortStableFunc(pieces, func(a, b piece) int { return cmp.Compare(a.hash, b.hash) })
	if low, last, err := c.bounds(); err != nil {
		return err
	} else if a, b := pieces[0], pieces[len(pieces)-1]; a.hash < low || b.hash > last {
		return d.corrupt(lblk, a.off, "hashes %#08x to %#08x are not the leaf's, %#08x to %#08x", a.hash, b.hash, low, last)
	}
	at := half(pieces)
	newBlk, nb, err := s.Append()
	if err != nil {
		return err
	}
	defer nb.Put()

	d.fill(nb.Data(), old, pieces[at:])
	d.leafChanged(s, nb)
	s.Change(b)
	d.fill(data, old, pieces[:at])
	d.leafChanged(s, b)

	hash := pieces[at].hash
	if hash == pieces[at-1].hash {
		hash |= 1 // names with this hash begin in the lower half
	}
	n := &c.path[c.n-1]
	s.Change(n.b)
	n.insert(c.at[c.n-1], hash, newBlk)
	d.nodeChanged(s, n)
	return nil
}

// half is where to cut so that both sides take about as many bytes; neither is empty.
func half(pieces []piece) int {
	total := 0
	for _, p := range pieces {
		total += p.size
	}
	size := 0
	for i, p := range pieces {
		if i > 0 && size+p.size/2 >= total/2 {
			return i
		}
		size += p.size
	}
	return len(pieces) - 1
}

// splitNode moves the upper half of the node below c.path[i], which has room for one more, to a new node.
func (d *Dir) splitNode(s Store, c *cursor, i int) error {
	parent, n := &c.path[i], &c.path[i+1]
	lblk, b, err := s.Append()
	if err != nil {
		return err
	}
	defer b.Put()
	keep := n.count / 2
	hash := n.hash(keep)
	upper := d.newNode(lblk, b)
	copy(upper.data[nodeEntries:], n.data[n.entries+dxEntry*keep:n.entries+dxEntry*n.count])
	upper.setCount(n.count - keep)
	d.nodeChanged(s, &upper)

	s.Change(n.b)
	s.Change(parent.b)
	clear(n.data[n.entries+dxEntry*keep : n.entries+dxEntry*n.count])
	n.setCount(keep)
	d.nodeChanged(s, n)
	parent.insert(c.at[i], hash, lblk)
	d.nodeChanged(s, parent)
	return nil
}

// growRoot moves the root's entries to a new node, the only one below it.
func (d *Dir) growRoot(s Store, c *cursor) error {
	root := &c.path[0]
	lblk, b, err := s.Append()
	if err != nil {
		return err
	}
	defer b.Put()
	n := d.newNode(lblk, b)
	copy(n.data[nodeEntries:], root.data[rootEntries:rootEntries+dxEntry*root.count])
	n.setCount(root.count)
	d.nodeChanged(s, &n)

	s.Change(root.b)
	clear(root.data[rootEntries : rootEntries+dxEntry*root.count])
	root.set(0, 0, lblk)
	root.setCount(1)
	root.data[rootInfo+6]++
	d.nodeChanged(s, root)
	return nil
}
