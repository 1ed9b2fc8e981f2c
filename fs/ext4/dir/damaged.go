package dir

import (
	"errors"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// A directory whose index is damaged still has its leaves, and they hold every name. So a name that the index does not
// lead to is looked for in all of them, and a listing is made of all of them: slower, but nobody loses files that are
// there. Nothing is changed in such a directory, since where a new name belongs only the index says; e2fsck -D makes a
// new one.

// maxBad is how many blocks that are no leaves, nor nodes, are passed over: a directory of nothing but holes must end.
const maxBad = 16

func isDamage(err error) bool {
	if err == nil || err == ErrNotExist {
		return false // as nearly always: no memory is taken for it
	}
	var c *disk.CorruptError
	return errors.As(err, &c)
}

// leaves calls fn with every block that may hold names until it returns false. fn takes over the reference.
// What is wrong with blocks that cannot be read is told at the end: the first of it.
func (d *Dir) leaves(s Store, fn func(b Block, lblk uint32) (bool, error)) error {
	var first error
	bad := 0
	for lblk := range s.Blocks() {
		more := true
		b, err := d.leafNotNode(s, lblk)
		if err == nil && b != nil {
			more, err = fn(b, lblk)
		}
		switch {
		case err != nil && !isDamage(err):
			return err
		case err != nil:
			if bad++; first == nil {
				first = err
			}
		}
		if !more || bad > maxBad {
			break
		}
	}
	return first
}

// leafNotNode reads a leaf; nil for a block of the index.
func (d *Dir) leafNotNode(s Store, lblk uint32) (Block, error) {
	if lblk == 0 {
		return nil, nil // the root: ".." covers the rest of it
	}
	b, err := d.get(s, lblk)
	if err != nil {
		return nil, err
	}
	none := d.noNames(b)
	b.Put()
	if none {
		return nil, nil
	}
	return d.leaf(s, lblk)
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

// findAnyway is find in a directory of whose index damage was found.
func (d *Dir) findAnyway(s Store, name string, damage error) (place, error) {
	s.Damaged(damage)
	if isDot(name) {
		b, err := d.dots(s)
		if err != nil {
			return place{}, err
		}
		return dot(name, b), nil
	}
	found := place{off: -1}
	err := d.leaves(s, func(b Block, lblk uint32) (bool, error) {
		off, prev, err := d.findIn(lblk, b.Data(), name)
		if err != nil || off < 0 {
			b.Put()
			return true, err
		}
		found = place{b: b, lblk: lblk, off: off, prev: prev}
		return false, nil
	})
	switch {
	case found.off >= 0:
		return found, nil
	case err == nil:
		err = ErrNotExist
	}
	return found, err
}

// readAnyway is readHashed of a directory of whose index damage was found. The cookies are the same.
func (d *Dir) readAnyway(s Store, cookie uint64, damage error, fn func(Entry, uint64) bool) error {
	s.Damaged(damage)
	if cookie < 2 {
		b, err := d.dots(s)
		if err != nil {
			return err
		}
		more := d.emitDots(b, cookie, fn)
		b.Put()
		if !more {
			return nil
		}
		cookie = 2
	}
	hash := d.hash
	var c cursor
	if err := c.open(d, s); err == nil {
		hash = c.hash
		c.close()
	}
	var t batch
	defer t.reset()
	err := d.leaves(s, func(b Block, lblk uint32) (bool, error) {
		return true, t.add(d, &hash, b, lblk, 0, 0, maxHash)
	})
	if !t.emit(cookie-2, fn) {
		return nil // what is wrong is told at the end
	}
	return err
}
