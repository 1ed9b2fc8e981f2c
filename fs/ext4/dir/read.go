package dir

import (
	"bytes"
	"slices"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// Cookies. A cookie is a place between two entries that stays where it is when names come and go: reading on from it
// misses and repeats no name that was there all the time. Where directories can have an index, entries are read in the
// order of their hashes, even while there is none, so that getting one moves nothing:
//
//	0      before "."
//	1      before ".."
//	k + 2  before the entry with key k: 31 bits of major hash, 24 of minor, 8 to tell apart entries that agree in those
//
// Entries that agree in 55 bits of hash are ordered by name and numbered; only their cookies can move, when one of
// their like comes or goes. The cookie behind all of them is the place of the next hash that can be, so that a program may take its low bits for itself, as
// GlusterFS does, and still reads on: ext4 gives the next entry's hash. In other directories a cookie is a byte offset. All cookies fit in 63 bits, for off_t.
const (
	ordinalBits = 8
	maxOrdinal  = 1<<ordinalBits - 1
	maxHash     = hashEOF
)

// Read calls fn with the entries from a cookie on, 0 for all, each with the cookie behind it, until fn returns false:
// then that entry was not taken. The entry's name is valid during the call. fn must not change the directory.
func (d *Dir) Read(s Store, cookie uint64, fn func(e Entry, next uint64) bool) error {
	switch {
	case s.Blocks() == 0:
		return nil // removed
	case s.Indexed():
		return d.readIndexed(s, cookie, fn)
	case d.index && s.Blocks() == 1:
		return d.readHashed(s, cookie, fn)
	}
	return d.readLinear(s, cookie, fn)
}

func (d *Dir) readLinear(s Store, cookie uint64, fn func(Entry, uint64) bool) error {
	size := uint64(d.blockSize)
	if cookie/size >= uint64(s.Blocks()) {
		return nil
	}
	var p pass
	for lblk := uint32(cookie / size); lblk < s.Blocks(); lblk++ {
		b, err := p.leaf(d, s, lblk)
		if err != nil {
			return err
		}
		base := uint64(lblk) * size
		more, err := d.each(lblk, b.Data(), 0, func(e Entry, off, next int) bool {
			if base+uint64(off) < cookie { // records were joined or cut since: begin with the next
				return true
			}
			pos := base + uint64(next)
			if next >= d.leafEnd() {
				pos = base + size
			}
			return fn(e, pos)
		})
		b.Put()
		if !more || err != nil {
			return err
		}
	}
	return nil
}

// each calls fn with the live entries of a leaf from off on, where they are and where the next record is, until it
// returns false.
func (d *Dir) each(lblk uint32, data []byte, off int, fn func(e Entry, off, next int) bool) (bool, error) {
	end := d.leafEnd()
	for off < end {
		r, why := d.rec(data, off, end)
		if why != "" {
			return false, d.corrupt(lblk, off, "%s", why)
		}
		if r.ino != 0 {
			e := d.entry(data, off, r)
			if badName(e.Name) {
				return false, d.corrupt(lblk, off, "name %q cannot be", e.Name)
			}
			if !fn(e, off, off+r.size) {
				return false, nil
			}
		}
		off += r.size
	}
	return true, nil
}

// badName says whether a name would mean something else, or less, to a program.
func badName(n []byte) bool { return bytes.IndexByte(n, '/') >= 0 || bytes.IndexByte(n, 0) >= 0 }

// item is an entry with its place in the order of hashes.
type item struct {
	Entry
	key uint64
}

// batch is the entries of one leaf, or of several that share a hash, in the order of their keys.
type batch struct {
	items  []item
	blocks []Block
}

func (t *batch) reset() {
	for _, b := range t.blocks {
		b.Put()
	}
	t.items, t.blocks = t.items[:0], t.blocks[:0]
}

// add takes in the entries of a leaf from off on, whose hashes must not be outside low to high. The reference to b goes
// to the batch.
func (t *batch) add(d *Dir, hash *Hash, b Block, lblk uint32, off int, low, high uint32) error {
	t.blocks = append(t.blocks, b)
	var bad error
	_, err := d.each(lblk, b.Data(), off, func(e Entry, off, _ int) bool {
		major, key := keyOf(hash, e.Name)
		if major < low || major > high {
			bad = d.corrupt(lblk, off, "hash %#08x of %q is not one of the leaf's, %#08x to %#08x", major, e.Name, low, high)
			return false
		}
		t.items = append(t.items, item{e, key})
		return true
	})
	if err == nil {
		err = bad
	}
	return err
}

// keyOf is the place of a name in the order of hashes, its ordinal left out.
func keyOf(hash *Hash, name []byte) (major uint32, key uint64) {
	major, minor := hash.Sum(string(name))
	if hash.Version == HashLegacy { // has no minor
		minor = disk.CRC32C(0, name)
	}
	return major, uint64(major>>1)<<32 | uint64(minor)&^maxOrdinal
}

// sortItems orders entries and numbers those whose keys agree.
func sortItems(items []item) {
	slices.SortFunc(items, func(a, b item) int {
		switch {
		case a.key < b.key:
			return -1
		case a.key > b.key:
			return 1
		}
		return bytes.Compare(a.Name, b.Name)
	})
	ordinal := uint64(0)
	for i := 1; i < len(items); i++ {
		if items[i].key == items[i-1].key-ordinal {
			ordinal = min(ordinal+1, maxOrdinal)
		} else {
			ordinal = 0
		}
		items[i].key += ordinal
	}
}

// emit calls fn with the entries from key on.
func (t *batch) emit(key uint64, fn func(Entry, uint64) bool) bool {
	sortItems(t.items)
	return emitFrom(t.items, key, fn)
}

// emitFrom calls fn with the entries from key on. They are in order.
func emitFrom(items []item, key uint64, fn func(Entry, uint64) bool) bool {
	i, _ := slices.BinarySearchFunc(items, key, func(it item, k uint64) int {
		switch {
		case it.key < k:
			return -1
		case it.key > k:
			return 1
		}
		return 0
	})
	for ; i < len(items); i++ {
		k := items[i].key
		next := k + 1
		if i+1 == len(items) || items[i+1].key|maxOrdinal != k|maxOrdinal {
			next = (k | maxOrdinal) + 1
		}
		if !fn(items[i].Entry, next+2) {
			return false
		}
	}
	return true
}

// readIndexed is readHashed, and where that comes upon damage it goes on without the index. The nodes are looked at before
// the first name is given: names that lie where their hashes do not belong could not be given later.
func (d *Dir) readIndexed(s Store, cookie uint64, fn func(Entry, uint64) bool) error {
	if l := d.listed.Load(); l != nil {
		return d.readAnyway(s, cookie, l.damage, fn)
	}
	if cookie == 0 {
		if err := d.checkIndex(s); isDamage(err) {
			return d.readAnyway(s, cookie, err, fn)
		} else if err != nil {
			return err
		}
	}
	enough := false
	err := d.readHashed(s, cookie, func(e Entry, next uint64) bool {
		if enough = !fn(e, next); enough {
			return false
		}
		cookie = next
		return true
	})
	if isDamage(err) && !enough {
		return d.readAnyway(s, cookie, err, fn)
	}
	return err
}

func (d *Dir) readHashed(s Store, cookie uint64, fn func(Entry, uint64) bool) error {
	if cookie < 2 {
		if more, err := d.readDots(s, cookie, fn); !more || err != nil {
			return err
		}
		cookie = 2
	}
	key := cookie - 2
	if key>>32 > maxHash>>1 {
		return nil
	}
	var t batch
	defer t.reset()
	if !s.Indexed() {
		b, err := d.leaf(s, 0)
		if err != nil {
			return err
		}
		if why := d.checkDots(b.Data(), d.leafEnd()); why != "" {
			b.Put()
			return d.corrupt(0, 0, "%s", why)
		}
		start := recMin + getRecLen(b.Data()[recMin:], d.blockSize)
		hash := d.hash
		if err := t.add(d, &hash, b, 0, start, 0, maxHash); err != nil {
			return err
		}
		t.emit(key, fn)
		return nil
	}
	var c cursor
	if err := c.open(d, s); err != nil {
		return err
	}
	defer c.close()
	if err := c.probe(uint32(key>>32) << 1); err != nil {
		return err
	}
	for {
		t.reset()
		if err := d.gather(&c, &t); err != nil {
			return err
		}
		if !t.emit(key, fn) {
			return nil
		}
		if more, err := c.next(); !more || err != nil {
			return err
		}
	}
}

// gather takes in the leaf at the cursor and those that continue it, and leaves the cursor at the last.
func (d *Dir) gather(c *cursor, t *batch) error {
	for {
		low, last, err := c.bounds()
		if err != nil {
			return err
		}
		high, more := c.high()
		b, lblk, err := c.leaf()
		if err != nil {
			return err
		}
		if err := t.add(d, &c.hash, b, lblk, 0, low, last); err != nil {
			return err
		}
		if !more || high&1 == 0 {
			return nil
		}
		if _, err := c.next(); err != nil {
			return err
		}
	}
}

// readDots calls fn with "." and "..".
func (d *Dir) readDots(s Store, cookie uint64, fn func(Entry, uint64) bool) (bool, error) {
	get, end := d.leaf, d.leafEnd()
	if s.Indexed() {
		end = d.blockSize
		get = func(s Store, _ uint32) (Block, error) {
			n, _, err := d.root(s)
			return n.b, err
		}
	}
	b, err := get(s, 0)
	if err != nil {
		return false, err
	}
	defer b.Put()
	data := b.Data()
	if why := d.checkDots(data, end); why != "" {
		return false, d.corrupt(0, 0, "%s", why)
	}
	return d.emitDots(b, cookie, fn), nil
}

// emitDots calls fn with what there is of "." and ".." from a cookie on.
func (d *Dir) emitDots(b Block, cookie uint64, fn func(Entry, uint64) bool) bool {
	data := b.Data()
	for i := cookie; i < 2; i++ {
		off := int(i) * recMin
		if !fn(d.entry(data, off, record{ino: le.Uint32(data[off:]), nameLen: int(i) + 1}), i+1) {
			return false
		}
	}
	return true
}
