package xattr

import (
	"bytes"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// Both places are a header, entries that end with a zero word, free space, and values at the end ([layout] struct
// ext4_xattr_entry). Value offsets count from base: the block's start, or in a body the first entry.
const (
	magic       = 0xEA020000
	bodyHeader  = 4
	blockHeader = 32
	entrySize   = 16 // without the name
	endSize     = 4
	maxValue    = 1 << 24
)

func pad(n int) int { return (n + 3) &^ 3 }

// space is what an attribute takes up.
func (a *Attr) space() int {
	n := pad(entrySize + len(a.Name))
	if a.ValueInum == 0 {
		n += pad(len(a.Value))
	}
	return n
}

// region is one of the two places, its header taken off.
type region struct {
	what string // the inode
	data []byte // entries to the end of the values
	base int    // 0 for the body, blockHeader for the block
}

func (r *region) corrupt(format string, args ...any) error {
	what := r.what + ", attributes in the inode"
	if r.base > 0 {
		what = r.what + ", attribute block"
	}
	return disk.Corrupt(what, format, args...)
}

func (f *Format) body(what string, area []byte) (region, bool) {
	if len(area) < bodyHeader+endSize || le.Uint32(area) != magic {
		return region{}, false
	}
	return region{what: what, data: area[bodyHeader:]}, true
}

func (f *Format) block(what string, no uint64, b []byte) (region, error) {
	r := region{what: what, data: b[blockHeader:], base: blockHeader}
	if m := le.Uint32(b); m != magic {
		return r, r.corrupt("magic of block %d is %#08x instead of %#08x", no, m, uint32(magic))
	}
	if n := le.Uint32(b[8:]); n != 1 {
		return r, r.corrupt("block %d says that it is %d blocks", no, n)
	}
	return r, nil
}

// entry is one entry, its parts in place.
type entry struct {
	index uint8
	name  []byte
	value []byte
	inum  uint32
	size  uint32
	hash  uint32
}

// next decodes the entry at off. more is false at the end of the list.
func (f *Format) next(r region, off, end int) (e entry, next int, more bool, err error) {
	b := r.data
	bad := func(format string, args ...any) (entry, int, bool, error) {
		return e, 0, false, r.corrupt(format, args...)
	}
	if off+endSize > len(b) {
		return bad("entries run over the end")
	}
	if le.Uint32(b[off:]) == 0 {
		return e, 0, false, nil
	}
	if off+entrySize > len(b) {
		return bad("entry at offset %d runs over the end", off+r.base)
	}
	n := int(b[off])
	next = off + pad(entrySize+n)
	if next+endSize > len(b) {
		return bad("entry at offset %d runs over the end", off+r.base)
	}
	e = entry{index: b[off+1], name: b[off+entrySize : off+entrySize+n], inum: le.Uint32(b[off+4:]),
		size: le.Uint32(b[off+8:]), hash: le.Uint32(b[off+12:])}
	if e.index == 0 && n == 0 {
		// No call could name it, and with an empty value it would read as the end of the list once it is written again.
		return bad("entry at offset %d has no name", off+r.base)
	}
	if bytes.IndexByte(e.name, 0) >= 0 {
		return bad("entry at offset %d has a name with a zero byte", off+r.base)
	}
	if e.size > maxValue {
		return bad("entry at offset %d has a value of %d bytes", off+r.base, e.size)
	}
	if e.inum != 0 {
		if !f.eaInode || e.inum > f.inodes || e.size == 0 {
			return bad("entry at offset %d has its value of %d bytes in inode %d", off+r.base, e.size, e.inum)
		}
		return e, next, true, nil
	}
	if e.size > 0 {
		at := int(le.Uint16(b[off+2:])) - r.base
		if at < end || at > len(b) || pad(int(e.size)) > len(b)-at {
			return bad("entry at offset %d has a value of %d bytes at %d", off+r.base, e.size, at+r.base)
		}
		e.value = b[at : at+int(e.size) : at+int(e.size)]
	}
	return e, next, true, nil
}

// end is where the list of entries ends, its last word included: values lie behind it.
func (f *Format) end(r region) (int, error) {
	off := 0
	for {
		if off+endSize > len(r.data) {
			return 0, r.corrupt("entries run over the end")
		}
		if le.Uint32(r.data[off:]) == 0 {
			return off + endSize, nil
		}
		off += pad(entrySize + int(r.data[off]))
	}
}

// parse lists a region's attributes. Their values are parts of it.
func (f *Format) parse(r region) ([]Attr, error) {
	end, err := f.end(r)
	if err != nil {
		return nil, err
	}
	var out []Attr
	for off := 0; ; {
		e, next, more, err := f.next(r, off, end)
		if err != nil {
			return nil, err
		}
		if !more {
			if n := space(out) + endSize; n > len(r.data) {
				return nil, r.corrupt("values overlap: they need %d bytes of %d", n, len(r.data))
			}
			return out, nil
		}
		out = append(out, e.attr(string(e.name)))
		off = next
	}
}

func (e *entry) attr(name string) Attr {
	a := Attr{Index: e.index, Name: name, Value: e.value, ValueInum: e.inum, Hash: e.hash}
	if e.inum != 0 {
		a.ValueSize = e.size
	}
	return a
}

// find looks for one attribute in a region, without allocating.
func (f *Format) find(r region, index uint8, name string) (Attr, error) {
	end, err := f.end(r)
	if err != nil {
		return Attr{}, err
	}
	for off := 0; ; {
		e, next, more, err := f.next(r, off, end)
		if err != nil {
			return Attr{}, err
		}
		if !more {
			return Attr{}, ErrNotExist
		}
		if e.index == index && string(e.name) == name {
			return e.attr(name), nil
		}
		off = next
	}
}
