package dir

import (
	"bytes"
	"errors"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// A directory whose index is damaged still has its leaves, and they hold every name. So where the index does not lead to a
// name, or through all of them, all leaves are read once, and what they say is kept: the directory does not change any
// more, since where a new name belongs only the index says. e2fsck -D makes a new one.

// maxBad is how many blocks that are neither leaves nor nodes, or that only have names which others had, are passed over: a directory of nothing but holes
// must end, and so must one whose tree has the same leaf everywhere.
const maxBad = 16

func isDamage(err error) bool {
	if err == nil || err == ErrNotExist {
		return false // as nearly always: no memory is taken for it
	}
	var c *disk.CorruptError
	return errors.As(err, &c)
}

// listing is the names of a directory with a damaged index, but for "." and "..".
type listing struct {
	damage error          // of the index
	items  []item         // in the order of their keys
	at     map[string]int // in items; while that is made, which are in it
	err    error          // what else is damaged: names may be missing
}

// listAnyway is the listing of a directory of whose index damage was found. An error is of reading.
func (d *Dir) listAnyway(s Store, damage error) (*listing, error) {
	s.Damaged(damage)
	if l := d.listed.Load(); l != nil {
		return l, nil
	}
	hash := d.hash
	var c cursor
	if err := c.open(d, s); err == nil {
		hash = c.hash
		c.close()
	}
	l := &listing{damage: damage, at: map[string]int{}}
	bad := 0
	var p pass
	for lblk := uint32(1); lblk < s.Blocks() && bad <= maxBad; lblk++ { // in the root, ".." covers the rest
		err := d.listLeaf(s, lblk, &hash, l, &p)
		switch {
		case err != nil && !isDamage(err):
			return nil, err
		case err != nil:
			if bad++; l.err == nil {
				l.err = err
			}
		}
	}
	sortItems(l.items)
	for i, it := range l.items {
		l.at[string(it.Name)] = i
	}
	d.listed.CompareAndSwap(nil, l)
	return d.listed.Load(), nil
}

// listLeaf adds the names of a leaf, if the block is one.
func (d *Dir) listLeaf(s Store, lblk uint32, hash *Hash, l *listing, p *pass) error {
	b, err := d.get(s, lblk)
	if err != nil {
		return err
	}
	none := d.noNames(b)
	err = p.took(d, b, lblk)
	b.Put()
	if none || err != nil {
		return err
	}
	if b, err = d.leaf(s, lblk); err != nil {
		return err
	}
	var t batch
	defer t.reset()
	err = t.add(d, hash, b, lblk, 0, 0, maxHash)
	had := len(l.items)
	for _, it := range t.items {
		if _, there := l.at[string(it.Name)]; there {
			continue
		}
		it.Name = bytes.Clone(it.Name)
		l.at[string(it.Name)] = 0
		l.items = append(l.items, it)
	}
	if err == nil && len(t.items) > 0 && len(l.items) == had {
		err = d.corrupt(lblk, 0, "all its names are in blocks before it")
	}
	return err
}

// checkIndex reads all nodes of the index.
func (d *Dir) checkIndex(s Store) error {
	var c cursor
	if err := c.open(d, s); err != nil {
		return err
	}
	defer c.close()
	if c.levels() == 0 {
		return nil
	}
	if err := c.probe(0); err != nil {
		return err
	}
	for {
		c.at[c.n-1] = c.path[c.n-1].count - 1 // the leaves are not looked at
		if more, err := c.next(); !more || err != nil {
			return err
		}
	}
}

// dots reads block 0 as far as "." and ".." go.
func (d *Dir) dots(s Store) (Block, error) {
	b, err := d.get(s, 0)
	if err != nil {
		return nil, err
	}
	if why := d.checkDots(b.Data(), d.blockSize); why != "" {
		b.Put()
		return nil, d.corrupt(0, 0, "%s", why)
	}
	return b, nil
}

// unchanging is why a directory is not changed any more: nil, it is. Only listings that are made anew would know of a change.
func (d *Dir) unchanging() error {
	if l := d.listed.Load(); l != nil {
		return l.damage
	}
	return nil
}

// lookupAnyway is Lookup in a directory of whose index damage was found.
func (d *Dir) lookupAnyway(s Store, name string, damage error) (ino uint32, ft uint8, err error) {
	if isDot(name) {
		s.Damaged(damage)
		b, err := d.dots(s)
		if err != nil {
			return 0, 0, err
		}
		defer b.Put()
		e := d.at(dot(name, b))
		return e.Ino, e.Type, nil
	}
	l, err := d.listAnyway(s, damage)
	if err != nil {
		return 0, 0, err
	}
	if i, ok := l.at[name]; ok {
		return l.items[i].Ino, l.items[i].Type, nil
	}
	if l.err != nil {
		return 0, 0, l.err
	}
	return 0, 0, ErrNotExist
}

// readAnyway is readHashed of a directory of whose index damage was found. The cookies are the same. What else is damaged
// is told at the end.
func (d *Dir) readAnyway(s Store, cookie uint64, damage error, fn func(Entry, uint64) bool) error {
	if cookie < 2 {
		b, err := d.dots(s)
		if err != nil {
			return err
		}
		more := d.emitDots(b, cookie, fn)
		b.Put()
		if !more {
			s.Damaged(damage)
			return nil
		}
		cookie = 2
	}
	l, err := d.listAnyway(s, damage)
	if err != nil {
		return err
	}
	if !emitFrom(l.items, cookie-2, fn) {
		return nil
	}
	return l.err
}
