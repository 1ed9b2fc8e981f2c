package dir

import "fmt"

// Init writes "." and ".." into a new directory, which has no blocks yet.
func (d *Dir) Init(s Store, parent uint32) error {
	lblk, b, err := s.Append()
	if err != nil {
		return err
	}
	defer b.Put()
	if lblk != 0 {
		panic("dir: Init of a directory that has blocks")
	}
	data := b.Data()
	clear(data)
	d.putRec(data, recMin, ".", d.ino, FTDir)
	d.putRec(data[recMin:], d.leafEnd()-recMin, "..", parent, FTDir)
	d.leafChanged(s, b)
	return nil
}

// Add puts a name in. The caller has made sure that it does not exist; where that is seen by the way, the error is
// ErrExist. ErrFull means that the index cannot grow. It appends at most MaxAppends blocks and makes at most MaxDirty
// dirty.
func (d *Dir) Add(s Store, name string, ino uint32, ft uint8) error {
	if len(name) == 0 || len(name) > MaxName {
		return fmt.Errorf("name %q: %d bytes, not 1 to %d", name, len(name), MaxName)
	}
	if ino == 0 || ino > d.inodes {
		panic(fmt.Sprintf("dir: inode %d", ino))
	}
	if err := d.unchanging(); err != nil {
		return err
	}
	if s.Indexed() {
		return d.addIndexed(s, name, ino, ft)
	}
	var p pass
	for lblk := range s.Blocks() {
		b, err := p.leaf(d, s, lblk)
		if err != nil {
			return err
		}
		done, err := d.addTo(s, b, lblk, name, ino, ft)
		b.Put()
		if done || err != nil {
			return err
		}
	}
	if d.index && s.Blocks() == 1 {
		if err := d.makeIndex(s); err != nil {
			return err
		}
		return d.addIndexed(s, name, ino, ft)
	}
	_, b, err := s.Append()
	if err != nil {
		return err
	}
	defer b.Put()
	data := b.Data()
	d.emptyLeaf(data)
	d.putRec(data, d.leafEnd(), name, ino, ft)
	d.leafChanged(s, b)
	return nil
}

// addTo puts an entry into a leaf. It reports false if there is no room.
func (d *Dir) addTo(s Store, b Block, lblk uint32, name string, ino uint32, ft uint8) (bool, error) {
	data := b.Data()
	if off, _, err := d.findIn(lblk, data, name); err != nil {
		return false, err
	} else if off >= 0 {
		return false, ErrExist
	}
	ok, err := d.insertIn(s, b, lblk, name, ino, ft)
	if ok {
		d.leafChanged(s, b)
	}
	return ok, err
}

// addIndexed puts an entry into the leaf that its hash says. As long as there is no room it takes one step that makes
// some, and looks again from the root: split the leaf; split the highest full node above it; give the root a level.
func (d *Dir) addIndexed(s Store, name string, ino uint32, ft uint8) error {
	var c cursor
	if err := c.open(d, s); err != nil {
		return err
	}
	defer c.close()
	hash, _ := c.hash.Sum(name)
	for range 2 * MaxAppends {
		if err := c.probe(hash); err != nil {
			return err
		}
		b, lblk, err := c.leaf()
		if err != nil {
			return err
		}
		done, err := d.addTo(s, b, lblk, name, ino, ft)
		if !done && err == nil {
			err = d.makeRoom(s, &c, b, lblk)
		}
		b.Put()
		if done || err != nil {
			return err
		}
	}
	return d.corrupt(0, rootEntries, "index has no room for %q however often it is split", name)
}

// makeRoom takes the next step towards room in a full leaf.
func (d *Dir) makeRoom(s Store, c *cursor, leaf Block, lblk uint32) error {
	room := c.n - 1 // the lowest node that has some
	for room >= 0 && c.path[room].count == c.path[room].limit {
		room--
	}
	switch {
	case room == c.n-1:
		return d.splitLeaf(s, c, leaf, lblk)
	case room >= 0:
		return d.splitNode(s, c, room)
	case c.levels() < d.maxLevels:
		return d.growRoot(s, c)
	}
	return ErrFull
}
