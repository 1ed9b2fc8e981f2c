package dir

import "github.com/lanefs/lanefs/fs/ext4/disk"

// The index ([layout] Hash Tree Directories). Its nodes look like leaves without entries to a driver that does not know them:
// the root is block 0, whose ".." record covers the rest of the block, and other nodes are one free record. Inside are
// entries of 8 bytes, hash and block, ordered by hash; the first has no hash, its place is taken by limit and count.
// Bit 0 of a hash says that names with that hash began in the block before. Behind the last place for an entry lies a
// checksum.
const (
	rootInfo    = 24 // struct dx_root_info, behind "." and ".."
	rootEntries = 32
	nodeEntries = 8
	dxEntry     = 8
	dxTail      = 8
	dxBlockMask = 0x0fffffff
)

// node is an index node in memory. Its Block is referenced.
type node struct {
	b       Block
	data    []byte
	lblk    uint32
	entries int // where they begin
	limit   int
	count   int
}

func (n *node) hash(i int) uint32 { return le.Uint32(n.data[n.entries+dxEntry*i:]) }
func (n *node) block(i int) uint32 {
	return le.Uint32(n.data[n.entries+dxEntry*i+4:]) & dxBlockMask
}

func (n *node) set(i int, hash, block uint32) {
	le.PutUint32(n.data[n.entries+dxEntry*i:], hash)
	le.PutUint32(n.data[n.entries+dxEntry*i+4:], block)
}

func (n *node) setCount(c int) {
	n.count = c
	le.PutUint16(n.data[n.entries:], uint16(n.limit))
	le.PutUint16(n.data[n.entries+2:], uint16(c))
}

// insert puts an entry behind the i-th. There is room.
func (n *node) insert(i int, hash, block uint32) {
	at := n.entries + dxEntry*(i+1)
	copy(n.data[at+dxEntry:n.entries+dxEntry*(n.count+1)], n.data[at:n.entries+dxEntry*n.count])
	n.set(i+1, hash, block)
	n.setCount(n.count + 1)
}

// limitOf is the number of entries in a node that begin at off.
func (d *Dir) limitOf(off int) int {
	if d.csum {
		off += dxTail
	}
	return (d.blockSize - off) / dxEntry
}

// rootHeader is what the root says about the index.
type rootHeader struct {
	version uint8
	levels  int // of nodes below the root
}

// root reads and checks block 0 of an indexed directory.
func (d *Dir) root(s Store) (node, rootHeader, error) {
	var h rootHeader
	n, err := d.node(s, 0, rootEntries)
	if err != nil {
		return n, h, err
	}
	b := n.data[rootInfo:]
	h = rootHeader{version: b[4], levels: int(b[6])}
	why := ""
	switch {
	case le.Uint32(b) != 0 || b[5] != rootEntries-rootInfo || b[7]&1 != 0:
		why = "this is no index root"
	case h.version == HashSiphash:
		why = "hash is siphash, that of encrypted case-insensitive directories"
	case h.version > HashTEA:
		why = "hash version is unknown"
	case h.levels > d.maxLevels:
		why = "the index is too deep"
	}
	if why != "" {
		n.b.Put()
		return n, h, d.corrupt(0, rootInfo, "%s", why)
	}
	return n, h, nil
}

// node reads and checks an index node whose entries begin at the offset given: the root's or another's.
func (d *Dir) node(s Store, lblk uint32, entries int) (node, error) {
	b, err := d.get(s, lblk)
	if err != nil {
		return node{}, err
	}
	n, err := d.parseNode(lblk, b.Data(), entries)
	if err == nil && !b.Verified() {
		if err = d.verifyNode(&n); err == nil {
			b.SetVerified()
		}
	}
	if err != nil {
		b.Put()
		return node{}, err
	}
	n.b = b
	return n, nil
}

func (d *Dir) parseNode(lblk uint32, data []byte, entries int) (node, error) {
	n := node{data: data, lblk: lblk, entries: entries}
	if entries == rootEntries {
		if why := d.checkDots(data, d.blockSize); why != "" {
			return n, d.corrupt(lblk, 0, "%s", why)
		}
		if getRecLen(data[recMin:], d.blockSize) != d.blockSize-recMin {
			return n, d.corrupt(lblk, recMin, `the root's ".." does not cover the block`)
		}
	} else if le.Uint32(data) != 0 || getRecLen(data, d.blockSize) != d.blockSize {
		return n, d.corrupt(lblk, 0, "this is no index node")
	}
	n.limit, n.count = int(le.Uint16(data[entries:])), int(le.Uint16(data[entries+2:]))
	if want := d.limitOf(entries); n.limit != want {
		return n, d.corrupt(lblk, entries, "index node for %d entries, should be %d", n.limit, want)
	}
	if n.count == 0 || n.count > n.limit {
		return n, d.corrupt(lblk, entries, "index node with %d entries of %d", n.count, n.limit)
	}
	return n, nil
}

// checkDots says what is wrong with the first two of the records that end at end: they must be "." and "..".
func (d *Dir) checkDots(data []byte, end int) string {
	if r, why := d.rec(data, 0, end); why != "" || r.size != recMin || r.nameLen != 1 || data[8] != '.' {
		return `no "." at the start`
	} else if r.ino != d.ino {
		return `"." is another inode`
	}
	if r, why := d.rec(data, recMin, end); why != "" || r.nameLen != 2 || data[20] != '.' || data[21] != '.' {
		return `no ".." behind "."`
	} else if r.ino == 0 {
		return `".." is no inode`
	}
	return ""
}

// nodeCsum computes a node's checksum ([layout] struct dx_tail) and says where it lies.
func (d *Dir) nodeCsum(n *node) (uint32, int) {
	tail := n.entries + dxEntry*n.limit
	c := disk.CRC32C(d.seed, n.data[:n.entries+dxEntry*n.count])
	c = disk.CRC32C(c, n.data[tail:tail+4])
	return disk.CRC32C32(c, 0), tail + 4
}

// verifyNode checks what need be checked once: the checksum, and the order that searching relies on.
func (d *Dir) verifyNode(n *node) error {
	if d.csum {
		want, off := d.nodeCsum(n)
		if got := le.Uint32(n.data[off:]); got != want {
			return d.corrupt(n.lblk, off, "index node's checksum is %#08x, should be %#08x", got, want)
		}
	}
	for i := 2; i < n.count; i++ {
		if n.hash(i) < n.hash(i-1) {
			return d.corrupt(n.lblk, n.entries+dxEntry*i, "index is out of order")
		}
	}
	return nil
}

// nodeChanged writes the checksum of a changed node and marks it dirty.
func (d *Dir) nodeChanged(s Store, n *node) {
	if d.csum {
		c, off := d.nodeCsum(n)
		le.PutUint32(n.data[off:], c)
		n.b.SetVerified()
	}
	s.Dirty(n.b)
}

// newNode makes an appended block an index node without entries.
func (d *Dir) newNode(lblk uint32, b Block) node {
	data := b.Data()
	clear(data)
	putRecLen(data, d.blockSize)
	return node{b: b, data: data, lblk: lblk, entries: nodeEntries, limit: d.limitOf(nodeEntries)}
}
