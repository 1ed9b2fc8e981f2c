// Package blockmap keeps the block map of one inode, as ext2 and ext3 have it: which logical blocks of a file lie at
// which blocks of the volume. It does for files without the extents flag what package extent does for the others, with
// the same nouns: its answers are extent.Extents, its nodes come through extent.Nodes.
//
// A map is a tree of block numbers of 32 bits, 0 for what is not there. The root is i_block: 12 direct blocks and one
// node each of one, two and three levels. A node is one block full of numbers. There are no unwritten blocks, no
// checksums, and nothing to say what a block is: every number is checked against the volume before it is used.
//
// Changes are made as in package extent: nodes are allocated before anything is touched, what was removed is reported
// after it left the map, and the caller holds the inode's lock.
//
// The layout is [layout]: Linux Documentation/filesystems/ext4/blockmap.rst.
package blockmap

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
)

// [layout] i_block: direct blocks, then the nodes of one, two and three levels.
const (
	directs = 12
	levels  = 3
	ptrSize = 4
)

// MaxPblk is the first block that a map cannot point to.
const MaxPblk = 1 << 32

// ErrUnwritten is returned by Insert for unwritten extents, which a block map cannot have.
var ErrUnwritten = errors.New("blockmap: files without extents cannot have unwritten blocks")

var le = binary.LittleEndian

// Tree is the block map of one inode.
type Tree struct {
	Ino      uint32
	Root     []byte // i_block, extent.RootSize bytes, changed in place
	Nodes    extent.Nodes
	NodeSize int        // of a node: the block size
	Blocks   disk.Block // of the volume: blocks and nodes lie below
	// Valid says whether n blocks from b may belong to a file; nil means that Blocks is the only bound.
	Valid func(b disk.Block, n uint32) bool
}

// Format makes root that of an empty map.
func Format(root []byte) { clear(root[:extent.RootSize]) }

func (t *Tree) corrupt(b disk.Block, format string, args ...any) error {
	what := fmt.Sprintf("inode %d, block map's root", t.Ino)
	if b != 0 {
		what = fmt.Sprintf("inode %d, block map in block %d", t.Ino, b)
	}
	return disk.Corrupt(what, format, args...)
}

func (t *Tree) valid(b disk.Block, n uint32) bool {
	if b == 0 || b >= t.Blocks || disk.Block(n) > t.Blocks-b || b+disk.Block(n) > MaxPblk {
		return false
	}
	return t.Valid == nil || t.Valid(b, n)
}

// per is the number of pointers in a node.
func (t *Tree) per() uint64 { return uint64(t.NodeSize / ptrSize) }

// MaxBlock is the first logical block that the map has no place for.
func (t *Tree) MaxBlock() uint32 {
	n := t.per()
	return uint32(min(directs+n+n*n+n*n*n, extent.MaxBlock))
}

// node is the numbers of a node, or of the root.
type node []byte

func (n node) ptr(i int) disk.Block       { return disk.Block(le.Uint32(n[i*ptrSize:])) }
func (n node) setPtr(i int, b disk.Block) { le.PutUint32(n[i*ptrSize:], uint32(b)) }
func (n node) count() int                 { return len(n) / ptrSize }

func (n node) empty() bool {
	for i := range n.count() {
		if n.ptr(i) != 0 {
			return false
		}
	}
	return true
}

// CheckRoot returns the first thing wrong with i_block itself.
func (t *Tree) CheckRoot() error {
	n := node(t.Root)
	for i := range n.count() {
		if b := n.ptr(i); b != 0 && !t.valid(b, 1) {
			return t.corrupt(0, "pointer %d is to block %d, which is not a file's", i, b)
		}
	}
	return nil
}

// level is one node on the way to a logical block, and the place of the pointer followed in it.
type level struct {
	buf extent.Node // nil for the root
	n   node
	i   int
}

// path is the way from the root to the pointer of a logical block. It ends early, at a pointer that is 0.
type path struct {
	t     *Tree
	lv    [levels + 1]level
	d     int    // lv[d] is the last level that is there
	depth int    // lv[depth] would have the pointer to the block itself
	start uint64 // first logical block below the pointer at lv[d]
	span  uint64 // how many logical blocks there are below it
	place [levels + 1]int
}

func (p *path) release() {
	for i := range p.lv {
		if p.lv[i].buf != nil {
			p.lv[i].buf.Put()
			p.lv[i].buf = nil
		}
	}
}

func (p *path) leaf() *level { return &p.lv[p.d] }

// complete says whether the path reached the level of the block's own pointer.
func (p *path) complete() bool { return p.d == p.depth }

func (p *path) block(l int) disk.Block {
	if p.lv[l].buf == nil {
		return 0
	}
	return p.lv[l].buf.Block()
}

// locate computes the places of logical block l: p.place, p.depth.
func (p *path) locate(l uint32) {
	per := p.t.per()
	p.place = [levels + 1]int{}
	if l < directs {
		p.depth, p.place[0] = 0, int(l)
		return
	}
	rest := uint64(l) - directs
	span := per
	for p.depth = 1; p.depth < levels && rest >= span; p.depth++ {
		rest -= span
		span *= per
	}
	p.place[0] = directs + p.depth - 1
	for k := 1; k <= p.depth; k++ {
		span /= per
		p.place[k] = int(rest / span)
		rest %= span
	}
}

// find follows the pointers towards logical block l. The caller releases the path, also after an error.
func (t *Tree) find(p *path, l uint32) error {
	p.release()
	p.t = t
	if len(t.Root) != extent.RootSize {
		return t.corrupt(0, "i_block of %d bytes", len(t.Root))
	}
	if l >= t.MaxBlock() {
		return extent.ErrRange
	}
	p.locate(l)
	p.span = 1
	for range p.depth {
		p.span *= t.per()
	}
	p.lv[0] = level{n: node(t.Root), i: p.place[0]}
	p.d = 0
	for {
		// What is below the pointer of this level begins at a multiple of its span after where the tree of the root's
		// pointer begins.
		p.start = uint64(l) - p.below(l)
		b := p.leaf().n.ptr(p.leaf().i)
		if p.d == p.depth || b == 0 {
			return nil
		}
		if !t.valid(b, 1) {
			return t.corrupt(p.block(p.d), "pointer %d is to block %d, which cannot be a node", p.leaf().i, b)
		}
		buf, err := t.Nodes.Get(b)
		if err != nil {
			return err
		}
		p.d++
		p.span /= t.per()
		p.lv[p.d] = level{buf: buf, n: node(buf.Data()), i: p.place[p.d]}
	}
}

// below is how far l is behind the first logical block below the pointer at the path's level.
func (p *path) below(l uint32) uint64 {
	first := uint64(0)
	if p.depth > 0 {
		first = directs
		for k, s := 1, p.t.per(); k < p.depth; k, s = k+1, s*p.t.per() {
			first += s
		}
	}
	return (uint64(l) - first) % p.span
}

func (p *path) dirty(l int) error {
	if p.lv[l].buf == nil {
		return p.t.Nodes.RootDirty()
	}
	return p.t.Nodes.Dirty(p.lv[l].buf)
}
