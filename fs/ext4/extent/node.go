package extent

import (
	"encoding/binary"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

var le = binary.LittleEndian

// node is the bytes of a node: header, entries, and in a block of its own a tail.
type node []byte

func (n node) entries() int     { return int(le.Uint16(n[2:])) }
func (n node) max() int         { return int(le.Uint16(n[4:])) }
func (n node) depth() int       { return int(le.Uint16(n[6:])) }
func (n node) setEntries(v int) { le.PutUint16(n[2:], uint16(v)) }
func (n node) setDepth(v int)   { le.PutUint16(n[6:], uint16(v)) }

func (n node) full() bool { return n.entries() >= n.max() }

// format writes the header of an empty node.
func (n node) format(depth int) {
	disk.ExtentHeader{Max: uint16(disk.MaxExtentEntries(len(n))), Depth: uint16(depth)}.Encode(n)
}

// span is the bytes of the entries [i, j).
func (n node) span(i, j int) []byte {
	return n[disk.ExtentHeaderSize+i*disk.ExtentEntrySize : disk.ExtentHeaderSize+j*disk.ExtentEntrySize]
}

// key is ee_block or ei_block: the two structs have it in the same place.
func (n node) key(i int) uint32       { return disk.ExtentBlock(n, i) }
func (n node) setKey(i int, v uint32) { le.PutUint32(n.span(i, i+1), v) }

// child is the block that the i-th entry of an index node points to.
func (n node) child(i int) disk.Block { return disk.Block(disk.GetExtentIndex(n, i).Leaf) }

// extent is the i-th entry of a leaf.
func (n node) extent(i int) Extent {
	x := disk.GetExtent(n, i)
	return Extent{Lblk: x.Block, Len: x.Len, Pblk: disk.Block(x.Start), Unwritten: x.Unwritten}
}

func (n node) setExtent(i int, x Extent) {
	disk.PutExtent(n, i, disk.Extent{Block: x.Lblk, Len: x.Len, Start: uint64(x.Pblk), Unwritten: x.Unwritten})
}

// entry writes itself as the i-th entry of a node.
type entry func(n node, i int)

func leafEntry(x Extent) entry { return func(n node, i int) { n.setExtent(i, x) } }

func indexEntry(key uint32, b disk.Block) entry {
	return func(n node, i int) { disk.PutExtentIndex(n, i, disk.ExtentIndex{Block: key, Leaf: uint64(b)}) }
}

// insert opens a slot at i, for which there is room, and puts e there.
func (n node) insert(i int, e entry) {
	c := n.entries()
	n.setEntries(c + 1)
	copy(n.span(i+1, c+1), n.span(i, c))
	e(n, i)
}

// remove drops the entries [i, j).
func (n node) remove(i, j int) {
	c := n.entries()
	copy(n.span(i, c), n.span(j, c))
	clear(n.span(c-(j-i), c))
	n.setEntries(c - (j - i))
}

// search finds the last entry whose key is at most l, -1 when there is none.
func (n node) search(l uint32) int {
	lo, hi := 0, n.entries()
	for lo < hi {
		m := int(uint(lo+hi) >> 1)
		if n.key(m) <= l {
			lo = m + 1
		} else {
			hi = m
		}
	}
	return lo - 1
}

// checkHeader is done each time that a node is used; depth is what its parent implies.
func (t *Tree) checkHeader(b disk.Block, n node, depth int) error {
	h, err := disk.DecodeExtentHeader("", n)
	if err != nil {
		_, err = disk.DecodeExtentHeader(t.name(b), n) // named only when it is needed
		return err
	}
	if int(h.Depth) != depth {
		return t.corrupt(b, "depth is %d, its parent says %d", h.Depth, depth)
	}
	return nil
}

// checkEntries is done once after a node was read: order, overlaps and bounds of all entries.
func (t *Tree) checkEntries(b disk.Block, n node) error {
	next := uint64(0)
	for i := range n.entries() {
		if n.depth() == 0 {
			x := n.extent(i)
			if err := t.checkExtent(b, x); err != nil {
				return err
			}
			if uint64(x.Lblk) < next {
				return t.corrupt(b, "extent %d at logical block %d overlaps the one before", i, x.Lblk)
			}
			next = uint64(x.End())
			continue
		}
		if uint64(n.key(i)) < next {
			return t.corrupt(b, "index %d at logical block %d is out of order", i, n.key(i))
		}
		if !t.validRange(n.child(i), 1) {
			return t.corrupt(b, "index %d points to block %d", i, n.child(i))
		}
		next = uint64(n.key(i)) + 1
	}
	return nil
}

// checkExtent is done each time that an extent is used.
func (t *Tree) checkExtent(b disk.Block, x Extent) error {
	switch {
	case x.Len == 0:
		return t.corrupt(b, "extent at logical block %d has no blocks", x.Lblk)
	case uint64(x.Lblk)+uint64(x.Len) > MaxBlock:
		return t.corrupt(b, "extent at logical block %d of %d blocks ends past the largest file", x.Lblk, x.Len)
	case !t.validRange(x.Pblk, x.Len):
		return t.corrupt(b, "extent at logical block %d: blocks %d+%d are not a file's", x.Lblk, x.Pblk, x.Len)
	}
	return nil
}

func (t *Tree) checkRoot() error {
	if len(t.Root) != RootSize {
		return t.corrupt(0, "i_block of %d bytes", len(t.Root))
	}
	n := node(t.Root)
	if err := t.checkHeader(0, n, n.depth()); err != nil {
		return err
	}
	return t.checkEntries(0, n)
}

// load gets the node at b, which lies at depth and below whose parent's pointer the keys are in [lo, hi).
func (t *Tree) load(b disk.Block, depth int, lo, hi uint32) (Node, error) {
	if !t.validRange(b, 1) {
		return nil, t.corrupt(b, "pointer to a block that cannot be a node")
	}
	buf, err := t.Nodes.Get(b)
	if err != nil {
		return nil, err
	}
	if err := t.checkNode(buf, depth, lo, hi); err != nil {
		buf.Put()
		return nil, err
	}
	return buf, nil
}

func (t *Tree) checkNode(buf Node, depth int, lo, hi uint32) error {
	b, n := buf.Block(), node(buf.Data())
	if err := t.checkHeader(b, n, depth); err != nil {
		return err
	}
	if !buf.Verified() {
		if t.Checksums {
			if err := disk.VerifyExtentBlock(t.name(b), t.Seed, n); err != nil {
				return err
			}
		}
		if err := t.checkEntries(b, n); err != nil {
			return err
		}
		buf.SetVerified()
	}
	if c := n.entries(); c > 0 {
		last := n.key(c - 1)
		if depth == 0 && n.extent(c-1).Len > 0 {
			last += n.extent(c-1).Len - 1
		}
		if n.key(0) < lo || last >= hi || last < n.key(0) {
			return t.corrupt(b, "keys %d to %d, its parent says %d to %d", n.key(0), last, lo, hi)
		}
	}
	return nil
}
