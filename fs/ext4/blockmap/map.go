package blockmap

import (
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
)

// Map says what lies at logical block l: a run of blocks that are neighbours on the volume too, or a hole, at most max
// blocks. It sees no further than one node: what continues in the next comes with the next call.
func (t *Tree) Map(l, max uint32) (extent.Extent, error) {
	if max == 0 || l >= extent.MaxBlock {
		return extent.Extent{}, extent.ErrRange
	}
	if l >= t.MaxBlock() {
		return extent.Extent{Lblk: l, Len: min(max, extent.MaxBlock-l)}, nil
	}
	var p path
	defer p.release()
	if err := t.find(&p, l); err != nil {
		return extent.Extent{}, err
	}
	if !p.complete() {
		return extent.Extent{Lblk: l, Len: uint32(min(p.start+p.span-uint64(l), uint64(max)))}, nil
	}
	lv := p.leaf()
	end := lv.n.count()
	if p.d == 0 {
		end = directs
	}
	x := extent.Extent{Lblk: l, Len: 1, Pblk: lv.n.ptr(lv.i)}
	for i := lv.i + 1; i < end && x.Len < max; i++ {
		want := disk.Block(0)
		if !x.Hole() {
			want = x.Pblk + disk.Block(x.Len)
		}
		if lv.n.ptr(i) != want {
			break
		}
		x.Len++
	}
	if !x.Hole() && !t.valid(x.Pblk, x.Len) {
		return extent.Extent{}, t.corrupt(p.block(p.d), "logical block %d: blocks %d+%d are not a file's", l, x.Pblk, x.Len)
	}
	return x, nil
}

// MapRange calls f for everything in [l, end), runs and holes in order, until f returns an error. What is one run may
// come in pieces. f must not change the map.
func (t *Tree) MapRange(l, end uint32, f func(extent.Extent) error) error {
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

// Walk visits the whole map in order: every node before what is below it (visitNode, with the number of levels below),
// every run of blocks (visitRun). Either may be nil. A node that is there twice is corruption, which also bounds the walk.
func (t *Tree) Walk(visitNode func(b disk.Block, depth int) error, visitRun func(extent.Extent) error) error {
	w := walker{t: t, node: visitNode, run: visitRun, seen: map[disk.Block]bool{}}
	if len(t.Root) != extent.RootSize {
		return t.corrupt(0, "i_block of %d bytes", len(t.Root))
	}
	root := node(t.Root)
	if err := w.leaf(0, root[:directs*ptrSize], 0); err != nil {
		return err
	}
	l := uint64(directs)
	span := uint64(1)
	for k := range levels {
		span *= t.per()
		if err := w.walk(0, root.ptr(directs+k), k, l); err != nil {
			return err
		}
		l += span
	}
	return w.flush()
}

type walker struct {
	t    *Tree
	node func(disk.Block, int) error
	run  func(extent.Extent) error
	seen map[disk.Block]bool
	last extent.Extent
}

// walk visits the node b, which has depth levels of nodes below it and begins at logical block l.
func (w *walker) walk(from, b disk.Block, depth int, l uint64) error {
	if b == 0 {
		return nil
	}
	if !w.t.valid(b, 1) || w.seen[b] {
		return w.t.corrupt(from, "a pointer to block %d, which cannot be a node", b)
	}
	w.seen[b] = true
	buf, err := w.t.Nodes.Get(b)
	if err != nil {
		return err
	}
	defer buf.Put()
	if w.node != nil {
		if err := w.node(b, depth); err != nil {
			return err
		}
	}
	n := node(buf.Data())
	if depth == 0 {
		return w.leaf(b, n, l)
	}
	span := uint64(1)
	for range depth {
		span *= w.t.per()
	}
	for i := range n.count() {
		if err := w.walk(b, n.ptr(i), depth-1, l+uint64(i)*span); err != nil {
			return err
		}
	}
	return nil
}

func (w *walker) leaf(b disk.Block, n node, l uint64) error {
	for i := range n.count() {
		at := l + uint64(i)
		pb := n.ptr(i)
		if pb == 0 {
			continue
		}
		if at >= uint64(w.t.MaxBlock()) || !w.t.valid(pb, 1) {
			return w.t.corrupt(b, "logical block %d at block %d", at, pb)
		}
		if w.last.Len > 0 && uint64(w.last.End()) == at && w.last.Pblk+disk.Block(w.last.Len) == pb {
			w.last.Len++
			continue
		}
		if err := w.flush(); err != nil {
			return err
		}
		w.last = extent.Extent{Lblk: uint32(at), Len: 1, Pblk: pb}
	}
	return nil
}

func (w *walker) flush() error {
	x := w.last
	w.last.Len = 0
	if x.Len == 0 || w.run == nil {
		return nil
	}
	return w.run(x)
}
