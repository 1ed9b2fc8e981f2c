package xattr

import (
	"cmp"
	"slices"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// FindBody looks for an attribute in the area behind an inode's members (disk.Inode.XattrArea). what names the inode in
// errors. It allocates only for errors other than ErrNotExist.
func (f *Format) FindBody(what string, area []byte, index uint8, name string) (Attr, error) {
	if r, ok := f.body(what, area); ok {
		return f.find(r, index, name)
	}
	return Attr{}, ErrNotExist
}

// FindBlock looks for an attribute in an attribute block, whose checksum VerifyBlock has checked.
func (f *Format) FindBlock(what string, no uint64, b []byte, index uint8, name string) (Attr, error) {
	r, err := f.block(what, no, b)
	if err != nil {
		return Attr{}, err
	}
	return f.find(r, index, name)
}

// Parse lists the attributes of an inode: area is its body, b its block, nil if it has none.
func (f *Format) Parse(what string, area []byte, no uint64, b []byte) (*Set, error) {
	s := &Set{format: f, bodySize: max(0, len(area)-bodyHeader-endSize)}
	var err error
	if r, ok := f.body(what, area); ok {
		if s.Body, err = f.parse(r); err != nil {
			return nil, err
		}
	}
	if b != nil {
		r, err := f.block(what, no, b)
		if err != nil {
			return nil, err
		}
		if s.Block, err = f.parse(r); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// EncodeBody writes the set's body into the inode's area. The inode is to be encoded after it.
func (f *Format) EncodeBody(s *Set, area []byte) {
	if len(area) < bodyHeader+endSize {
		if len(s.Body) > 0 {
			panic("xattr: attributes for an inode without room")
		}
		return
	}
	out := make([]byte, len(area)) // values may be part of area
	if len(s.Body) > 0 {
		le.PutUint32(out, magic)
		encode(s.Body, out[bodyHeader:], 0, false)
	}
	copy(area, out)
}

// EncodeBlock writes the set's block, with its hash and checksum, into the block no, which one inode uses.
func (f *Format) EncodeBlock(s *Set, no uint64, b []byte) {
	if len(b) != f.blockSize {
		panic("xattr: a block of the wrong size")
	}
	out := make([]byte, len(b))
	le.PutUint32(out, magic)
	le.PutUint32(out[4:], 1)
	le.PutUint32(out[8:], 1)
	le.PutUint32(out[12:], encode(s.Block, out[blockHeader:], blockHeader, true))
	copy(b, out)
	f.setCsum(no, b)
}

// encode writes entries and values and gives the hash of all entries. Only in blocks do entries have hashes and an
// order.
func encode(attrs []Attr, out []byte, base int, block bool) (hash uint32) {
	if block {
		attrs = slices.Clone(attrs)
		slices.SortFunc(attrs, func(a, b Attr) int {
			return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(len(a.Name), len(b.Name)), cmp.Compare(a.Name, b.Name))
		})
	}
	off, at, shareable := 0, len(out), true
	for _, a := range attrs {
		out[off], out[off+1] = uint8(len(a.Name)), a.Index
		le.PutUint32(out[off+4:], a.ValueInum)
		le.PutUint32(out[off+8:], uint32(a.Size()))
		copy(out[off+entrySize:], a.Name)
		h := a.Hash
		if a.ValueInum == 0 {
			if h = 0; len(a.Value) > 0 {
				at -= pad(len(a.Value))
				copy(out[at:], a.Value)
				le.PutUint16(out[off+2:], uint16(at+base))
			}
			if block {
				h = entryHash(a.Name, a.Value)
			}
		}
		le.PutUint32(out[off+12:], h)
		hash = hash<<16 ^ hash>>16 ^ h
		shareable = shareable && h != 0
		off += pad(entrySize + len(a.Name))
	}
	if off+endSize > at {
		panic("xattr: attributes do not fit")
	}
	if !shareable {
		return 0
	}
	return hash
}

// entryHash is an entry's e_hash: over the bytes of the name, taken as unsigned, and the words of the value.
func entryHash(name string, value []byte) uint32 {
	h := uint32(0)
	for i := range len(name) {
		h = h<<5 ^ h>>27 ^ uint32(name[i])
	}
	for len(value) > 0 {
		var w [4]byte
		value = value[copy(w[:], value):]
		h = h<<16 ^ h>>16 ^ le.Uint32(w[:])
	}
	return h
}

// Refcount is the number of inodes that share the block. One that is shared must not be changed: a change
// writes another block and takes one off this one's count.
func Refcount(b []byte) uint32 { return le.Uint32(b[4:]) }

// SetRefcount changes the number of inodes that share the block no.
func (f *Format) SetRefcount(no uint64, b []byte, n uint32) {
	le.PutUint32(b[4:], n)
	f.setCsum(no, b)
}

// csum computes a block's checksum, in which the field itself counts as zero.
func (f *Format) csumOf(no uint64, b []byte) uint32 {
	c := disk.CRC32C64(f.seed, no)
	c = disk.CRC32C(c, b[:16])
	c = disk.CRC32C32(c, 0)
	return disk.CRC32C(c, b[20:])
}

func (f *Format) setCsum(no uint64, b []byte) {
	if f.csum {
		le.PutUint32(b[16:], f.csumOf(no, b))
	}
}

// VerifyBlock checks the checksum of attribute block no.
func (f *Format) VerifyBlock(what string, no uint64, b []byte) error {
	if !f.csum {
		return nil
	}
	if got, want := le.Uint32(b[16:]), f.csumOf(no, b); got != want {
		return disk.Corrupt(what+", attribute block", "checksum of block %d is %#08x, should be %#08x", no, got, want)
	}
	return nil
}
