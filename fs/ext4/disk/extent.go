package disk

// Extent trees ([layout] Extent Tree). A node is a header and up to Max entries of 12 bytes: Extents at depth 0,
// ExtentIndexes above. In a block of its own, a node ends in a checksum behind its Max entries.
const (
	ExtentMagic      = 0xF30A
	ExtentHeaderSize = 12
	ExtentEntrySize  = 12
	ExtentTailSize   = 4
	MaxExtentDepth   = 5
	// MaxExtentLen is the most blocks of a written extent, MaxUnwrittenLen of an unwritten one.
	MaxExtentLen    = 1 << 15
	MaxUnwrittenLen = 1<<15 - 1
)

// ExtentHeader is struct ext4_extent_header.
type ExtentHeader struct {
	Entries    uint16
	Max        uint16
	Depth      uint16
	Generation uint32
}

// Extent is struct ext4_extent: Len blocks of the file from Block lie at Start. Unwritten ones read as zeroes.
type Extent struct {
	Block     uint32
	Len       uint32
	Start     uint64
	Unwritten bool
}

// ExtentIndex is struct ext4_extent_idx: what begins at Block of the file is described by the node at Leaf.
type ExtentIndex struct {
	Block uint32
	Leaf  uint64
}

// MaxExtentEntries is the number of entries in a node of size bytes. In a block, whose size is a power of two, what is
// left behind them always has room for the tail.
func MaxExtentEntries(size int) int { return (size - ExtentHeaderSize) / ExtentEntrySize }

// DecodeExtentHeader decodes the header of a node of len(b) bytes and checks it against the space there is.
func DecodeExtentHeader(what string, b []byte) (ExtentHeader, error) {
	h := ExtentHeader{
		Entries:    le.Uint16(b[2:]),
		Max:        le.Uint16(b[4:]),
		Depth:      le.Uint16(b[6:]),
		Generation: le.Uint32(b[8:]),
	}
	if m := le.Uint16(b); m != ExtentMagic {
		return h, Corrupt(what, "extent node's magic is %#04x instead of %#04x", m, ExtentMagic)
	}
	most := (len(b) - ExtentHeaderSize) / ExtentEntrySize
	switch {
	case h.Max == 0 || int(h.Max) > most:
		return h, Corrupt(what, "extent node for %d entries where %d fit", h.Max, most)
	case h.Entries > h.Max:
		return h, Corrupt(what, "extent node with %d entries of %d", h.Entries, h.Max)
	case h.Depth > MaxExtentDepth:
		return h, Corrupt(what, "extent node of depth %d", h.Depth)
	case h.Depth > 0 && h.Entries == 0:
		return h, Corrupt(what, "extent index node without entries")
	}
	return h, nil
}

// Encode writes the header into the first ExtentHeaderSize bytes of b.
func (h ExtentHeader) Encode(b []byte) {
	_ = b[ExtentHeaderSize-1]
	le.PutUint16(b, ExtentMagic)
	le.PutUint16(b[2:], h.Entries)
	le.PutUint16(b[4:], h.Max)
	le.PutUint16(b[6:], h.Depth)
	le.PutUint32(b[8:], h.Generation)
}

// entry is the i-th entry of a node.
func entry(node []byte, i int) []byte {
	off := ExtentHeaderSize + i*ExtentEntrySize
	return node[off : off+ExtentEntrySize : off+ExtentEntrySize]
}

// GetExtent decodes the i-th entry of a leaf node. A length of 0 is for the caller to refuse.
func GetExtent(node []byte, i int) Extent {
	b := entry(node, i)
	e := Extent{
		Block: le.Uint32(b),
		Len:   uint32(le.Uint16(b[4:])),
		Start: uint64(le.Uint16(b[6:]))<<32 | uint64(le.Uint32(b[8:])),
	}
	if e.Len > MaxExtentLen {
		e.Len -= MaxExtentLen
		e.Unwritten = true
	}
	return e
}

// PutExtent encodes e as the i-th entry of a leaf node.
func PutExtent(node []byte, i int, e Extent) {
	b := entry(node, i)
	n := e.Len
	if e.Unwritten {
		n += MaxExtentLen
	}
	if e.Len == 0 || e.Len > MaxExtentLen || n > 1<<16-1 {
		panic("disk: extent length out of range")
	}
	le.PutUint32(b, e.Block)
	le.PutUint16(b[4:], uint16(n))
	le.PutUint16(b[6:], uint16(e.Start>>32))
	le.PutUint32(b[8:], uint32(e.Start))
}

// ExtentBlock is the first file block of the i-th entry of any node.
func ExtentBlock(node []byte, i int) uint32 { return le.Uint32(entry(node, i)) }

// GetExtentIndex decodes the i-th entry of an index node.
func GetExtentIndex(node []byte, i int) ExtentIndex {
	b := entry(node, i)
	return ExtentIndex{Block: le.Uint32(b), Leaf: uint64(le.Uint32(b[4:])) | uint64(le.Uint16(b[8:]))<<32}
}

// PutExtentIndex encodes x as the i-th entry of an index node.
func PutExtentIndex(node []byte, i int, x ExtentIndex) {
	b := entry(node, i)
	le.PutUint32(b, x.Block)
	le.PutUint32(b[4:], uint32(x.Leaf))
	le.PutUint16(b[8:], uint16(x.Leaf>>32))
	le.PutUint16(b[10:], 0)
}

// extentTail is where the checksum of the node block lies, false if there is no room for one.
func extentTail(block []byte) (int, bool) {
	off := ExtentHeaderSize + int(le.Uint16(block[4:]))*ExtentEntrySize
	return off, off+ExtentTailSize <= len(block)
}

// VerifyExtentBlock checks the checksum of an extent node in a block of its own. seed is InodeSeed of the file.
func VerifyExtentBlock(what string, seed uint32, block []byte) error {
	off, ok := extentTail(block)
	if !ok {
		return Corrupt(what, "extent node leaves no room for its checksum")
	}
	if got, want := le.Uint32(block[off:]), CRC32C(seed, block[:off]); got != want {
		return Corrupt(what, "extent node's checksum is %#08x, should be %#08x", got, want)
	}
	return nil
}

// SetExtentBlockCsum writes the checksum of an extent node in a block of its own, whose header is in place.
func SetExtentBlockCsum(seed uint32, block []byte) {
	off, ok := extentTail(block)
	if !ok {
		panic("disk: extent node without room for its checksum")
	}
	le.PutUint32(block[off:], CRC32C(seed, block[:off]))
}
