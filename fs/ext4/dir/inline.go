package dir

import (
	"fmt"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// Inline is a directory whose entries are inside its inode ([layout] Inline Directories): the number of its parent,
// then entries in i_block and, behind them, in the value of the attribute system.data. It has no "." and "..", no
// index and no checksum of its own. The two parts are changed in place, and More is replaced when it grows; the
// caller puts them back into the inode, under a transaction.
type Inline struct {
	Dir   *Dir
	Block []byte // i_block
	More  []byte // the value of system.data, may be empty
}

// inlineHeader is the parent's number at the start of i_block.
const inlineHeader = 4

// blockShift is how much later than in i_block an entry lies in a block: where "." and ".." come before it.
const blockShift = 2*recMin - inlineHeader

// InlineDir describes the directory ino of a volume, for Inline.
func InlineDir(s *disk.Superblock, ino uint32) *Dir { return describe(s, ino, 0) }

// InitInline writes an empty directory into i_block.
func InitInline(block []byte, parent uint32) {
	clear(block)
	le.PutUint32(block, parent)
	putRecLen(block[inlineHeader:], len(block)-inlineHeader)
}

// part is one of the two places: its bytes, where its entries begin, and the offset that it begins at.
type part struct {
	data []byte
	off  int
	base int
}

func (n *Inline) parts() [2]part {
	return [...]part{{n.Block, inlineHeader, 0}, {n.More, 0, len(n.Block)}}
}

// each calls fn with the entries and where they and their successors are, as offsets into i_block and what follows.
func (n *Inline) each(fn func(e Entry, off, next int) bool) error {
	for _, p := range n.parts() {
		for off := p.off; off < len(p.data); {
			r, why := n.Dir.rec(p.data, off, len(p.data))
			if why != "" {
				return n.corrupt(p.base+off, why)
			}
			if r.ino != 0 {
				e := n.Dir.entry(p.data, off, r)
				if badName(e.Name) {
					return n.Dir.corrupt(0, p.base+off, "name %q cannot be", e.Name)
				}
				if !fn(e, p.base+off, p.base+off+r.size) {
					return nil
				}
			}
			off += r.size
		}
	}
	return nil
}

func (n *Inline) corrupt(off int, why string) error {
	return n.Dir.corrupt(0, off, "inline entry: %s", why)
}

// parent is the directory above.
func (n *Inline) parent() (uint32, error) {
	p := le.Uint32(n.Block)
	if p == 0 || p > n.Dir.inodes {
		return 0, n.Dir.corrupt(0, 0, "parent is inode %d", p)
	}
	return p, nil
}

// Lookup is Dir.Lookup.
func (n *Inline) Lookup(name string) (ino uint32, ft uint8, err error) {
	switch name {
	case ".":
		return n.Dir.ino, FTDir, nil
	case "..":
		ino, err = n.parent()
		return ino, FTDir, err
	}
	err = n.each(func(e Entry, _, _ int) bool {
		if string(e.Name) == name {
			ino, ft = e.Ino, e.Type
		}
		return ino == 0
	})
	if err == nil && ino == 0 {
		err = ErrNotExist
	}
	return ino, ft, err
}

// Empty is Dir.Empty.
func (n *Inline) Empty() (bool, error) {
	empty := true
	err := n.each(func(Entry, int, int) bool {
		empty = false
		return false
	})
	return empty, err
}

// Read is Dir.Read, with the cookies that the directory will have when it gets a block.
func (n *Inline) Read(cookie uint64, fn func(e Entry, next uint64) bool) error {
	d := n.Dir
	dot, dotdot := uint64(recMin), uint64(2*recMin) // the cookies behind them
	if d.index {
		dot, dotdot = 1, 2
	}
	if cookie < dot && !fn(Entry{Name: []byte("."), Ino: d.ino, Type: FTDir}, dot) {
		return nil
	}
	if cookie < dotdot {
		p, err := n.parent()
		if err != nil || !fn(Entry{Name: []byte(".."), Ino: p, Type: FTDir}, dotdot) {
			return err
		}
	}
	if !d.index {
		return n.each(func(e Entry, off, next int) bool {
			return uint64(off+blockShift) < cookie || fn(e, uint64(next+blockShift))
		})
	}
	var t batch
	err := n.each(func(e Entry, _, _ int) bool {
		_, key := keyOf(&d.hash, e.Name)
		t.items = append(t.items, item{e, key})
		return true
	})
	if err == nil {
		t.emit(max(cookie, 2)-2, fn)
	}
	return err
}

// Add is Dir.Add: into free space, or into what More grows by, up to room bytes. It reports false if there is no room.
func (n *Inline) Add(name string, ino uint32, ft uint8, room int) (bool, error) {
	if len(name) == 0 || len(name) > MaxName {
		return false, fmt.Errorf("name %q: %d bytes, not 1 to %d", name, len(name), MaxName)
	}
	if _, _, err := n.Lookup(name); err != ErrNotExist {
		if err == nil {
			err = ErrExist
		}
		return false, err
	}
	for _, p := range n.parts() {
		ok, off, why := n.Dir.insert(p.data, p.off, len(p.data), name, ino, ft, func() {})
		if why != "" {
			return false, n.corrupt(p.base+off, why)
		}
		if ok {
			return true, nil
		}
	}
	at, size := len(n.More), recSize(len(name))
	if at+size > room {
		return false, nil
	}
	n.More = append(n.More[:at:at], make([]byte, size)...)
	n.Dir.putRec(n.More[at:], size, name, ino, ft)
	return true, nil
}

// find looks for a name: the part it is in, and the offsets there of its record and the one before, -1 if there is none.
func (n *Inline) find(name string) (p part, off, prev int, err error) {
	for _, p := range n.parts() {
		prev := -1
		for off := p.off; off < len(p.data); {
			r, why := n.Dir.rec(p.data, off, len(p.data))
			if why != "" {
				return p, 0, 0, n.corrupt(p.base+off, why)
			}
			if r.ino != 0 && string(p.data[off+recHeader:off+recHeader+r.nameLen]) == name {
				return p, off, prev, nil
			}
			prev = off
			off += r.size
		}
	}
	return p, 0, 0, ErrNotExist
}

// Remove is Dir.Remove.
func (n *Inline) Remove(name string) (ino uint32, err error) {
	p, off, prev, err := n.find(name)
	if err != nil {
		return 0, err
	}
	ino = le.Uint32(p.data[off:])
	n.Dir.removeFrom(p.data, off, prev)
	return ino, nil
}

// Replace is Dir.Replace.
func (n *Inline) Replace(name string, ino uint32, ft uint8) (old uint32, err error) {
	if name == ".." {
		old = le.Uint32(n.Block)
		le.PutUint32(n.Block, ino)
		return old, nil
	}
	p, off, _, err := n.find(name)
	if err != nil {
		return 0, err
	}
	old = le.Uint32(p.data[off:])
	le.PutUint32(p.data[off:], ino)
	if n.Dir.filetype {
		p.data[off+7] = ft
	}
	return old, nil
}

// Outgrow writes the entries of n into the first block of d, the same directory without inline data, which has no
// blocks yet. Entries keep their order and their distance, so that cookies stay good.
func (d *Dir) Outgrow(s Store, n *Inline) error {
	parent, err := n.parent()
	if err != nil {
		return err
	}
	if err := n.each(func(Entry, int, int) bool { return true }); err != nil {
		return err // what is copied is well-formed
	}
	lblk, b, err := s.Append()
	if err != nil {
		return err
	}
	defer b.Put()
	data := b.Data()
	if lblk != 0 || 2*recMin+len(n.Block)+len(n.More) > d.leafEnd() {
		panic("dir: Outgrow into a directory that has blocks, or of more than fits one")
	}
	clear(data)
	d.putRec(data, recMin, ".", d.ino, FTDir)
	d.putRec(data[recMin:], recMin, "..", parent, FTDir)
	at := 2 * recMin
	at += copy(data[at:], n.Block[inlineHeader:])
	at += copy(data[at:], n.More)
	last := 2 * recMin
	for off := last; off < at; off += getRecLen(data[off:], d.blockSize) {
		last = off
	}
	putRecLen(data[last:], d.leafEnd()-last)
	d.leafChanged(s, b)
	return nil
}
