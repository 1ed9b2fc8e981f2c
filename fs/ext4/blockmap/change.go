package blockmap

import (
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
)

// Insert maps a hole: the blocks of x. It returns how many blocks are mapped, which is less than x.Len only with an
// error.
func (t *Tree) Insert(x extent.Extent) (uint32, error) {
	if x.Unwritten {
		return 0, ErrUnwritten
	}
	if x.Len == 0 || uint64(x.Lblk)+uint64(x.Len) > uint64(t.MaxBlock()) {
		return 0, extent.ErrRange
	}
	if !t.valid(x.Pblk, x.Len) {
		return 0, t.corrupt(0, "blocks %d+%d are not what a block map can point to", x.Pblk, x.Len)
	}
	for done := uint32(0); done < x.Len; {
		n, err := t.insertPiece(x.Lblk+done, x.Len-done, x.Pblk+disk.Block(done))
		done += n
		if err != nil || done == x.Len {
			return done, err
		}
	}
	return 0, nil
}

// insertPiece sets the pointers of one node.
func (t *Tree) insertPiece(l, n uint32, b disk.Block) (uint32, error) {
	var p path
	defer p.release()
	if err := t.find(&p, l); err != nil {
		return 0, err
	}
	if err := p.complement(b); err != nil {
		return 0, err
	}
	lv := p.leaf()
	end := lv.n.count()
	if p.d == 0 {
		end = directs
	}
	n = min(n, uint32(end-lv.i))
	for i := range int(n) {
		if lv.n.ptr(lv.i+i) != 0 {
			return 0, extent.ErrMapped // a node that complement added has no pointers, so nothing was lost
		}
	}
	for i := range int(n) {
		lv.n.setPtr(lv.i+i, b+disk.Block(i))
	}
	return n, p.dirty(p.d)
}

// complement adds the nodes that the path lacks. They are linked once all are there.
func (p *path) complement(goal disk.Block) error {
	if p.complete() {
		return nil
	}
	var fresh []extent.Node
	for range p.depth - p.d {
		buf, err := p.t.Nodes.Alloc(goal)
		if err == nil && buf.Block() >= MaxPblk {
			fresh = append(fresh, buf)
			err = extent.ErrRange
		} else if err == nil {
			fresh = append(fresh, buf)
			continue
		}
		for _, f := range fresh {
			b := f.Block()
			f.Put()
			if ferr := p.t.Nodes.Free(b); ferr != nil {
				return ferr
			}
		}
		return err
	}
	link := p.d
	for k, buf := range fresh {
		buf.SetVerified()
		p.lv[link+1+k] = level{buf: buf, n: node(buf.Data()), i: p.place[link+1+k]}
	}
	for k := len(fresh); k > 0; k-- {
		at := &p.lv[link+k-1]
		at.n.setPtr(at.i, p.lv[link+k].buf.Block())
	}
	p.d = p.depth
	for l := link; l <= p.d; l++ {
		if err := p.dirty(l); err != nil {
			return err
		}
	}
	return nil
}

// Remove unmaps the logical blocks [from, to), from the end backwards, and calls freed with each run of them that was
// mapped, after it left the map. It ends early after limit runs: what it returns is the new end, and the caller goes on
// with Remove(from, end, …) until end is from.
func (t *Tree) Remove(from, to uint32, limit int, freed func(extent.Extent) error) (uint32, error) {
	to = max(min(to, t.MaxBlock()), from)
	for to > from && limit > 0 {
		n, end, err := t.removeNode(from, to, limit, freed)
		if err != nil {
			return to, err
		}
		to = end
		limit -= n
	}
	return to, nil
}

// removeNode removes what one node has of [from, to), at most limit runs. It returns how many, and the new end.
func (t *Tree) removeNode(from, to uint32, limit int, freed func(extent.Extent) error) (int, uint32, error) {
	var p path
	defer p.release()
	if err := t.find(&p, to-1); err != nil {
		return 0, to, err
	}
	if !p.complete() {
		return 0, max(from, uint32(p.start)), nil // nothing below: on with what is before
	}
	lv := p.leaf()
	var out []extent.Extent
	end := to
	for i := lv.i; i >= 0 && end > from; i, end = i-1, end-1 {
		b := lv.n.ptr(i)
		if b == 0 {
			continue
		}
		if !t.valid(b, 1) {
			return 0, to, t.corrupt(p.block(p.d), "logical block %d at block %d, which is not a file's", end-1, b)
		}
		if k := len(out) - 1; k >= 0 && out[k].Lblk == end && out[k].Pblk == b+1 {
			out[k].Lblk, out[k].Pblk, out[k].Len = end-1, b, out[k].Len+1
			continue
		}
		if len(out) == limit {
			break
		}
		out = append(out, extent.Extent{Lblk: end - 1, Len: 1, Pblk: b})
	}
	if len(out) == 0 {
		return 0, end, nil
	}
	clear(lv.n[(lv.i+1-int(to-end))*ptrSize : (lv.i+1)*ptrSize])
	if err := p.prune(p.d); err != nil {
		return 0, to, err
	}
	for _, x := range out {
		if err := freed(x); err != nil {
			return 0, to, err
		}
	}
	return len(out), end, nil
}

// prune reports the node at level l as changed, or frees it if nothing is left in it.
func (p *path) prune(l int) error {
	lv := &p.lv[l]
	if l == 0 || !lv.n.empty() {
		return p.dirty(l)
	}
	b := lv.buf.Block()
	up := &p.lv[l-1]
	up.n.setPtr(up.i, 0)
	if err := p.prune(l - 1); err != nil {
		return err
	}
	return p.t.Nodes.Free(b)
}
