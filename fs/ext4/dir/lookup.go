package dir

// place is where an entry was found. Its block is referenced.
type place struct {
	b         Block
	lblk      uint32
	off, prev int
	root      bool // in the root of an index
}

func isDot(name string) bool { return name == "." || name == ".." }

// find looks for a name.
func (d *Dir) find(s Store, name string) (place, error) {
	if len(name) == 0 || len(name) > MaxName {
		return place{}, ErrNotExist
	}
	if !s.Indexed() {
		return d.findLinear(s, name)
	}
	var c cursor
	if err := c.open(d, s); err != nil {
		return place{}, err
	}
	defer c.close()
	if isDot(name) {
		c.n = 0 // the reference goes with the place
		return dot(name, c.path[0].b), nil
	}
	hash, _ := c.hash.Sum(name)
	if err := c.probe(hash); err != nil {
		return place{}, err
	}
	for {
		b, lblk, err := c.leaf()
		if err != nil {
			return place{}, err
		}
		off, prev, err := d.findIn(lblk, b.Data(), name)
		if err == nil && off >= 0 {
			return place{b: b, lblk: lblk, off: off, prev: prev}, nil
		}
		b.Put()
		if err != nil {
			return place{}, err
		}
		if high, more := c.high(); !more || high != hash|1 {
			return place{}, ErrNotExist
		}
		if _, err := c.next(); err != nil {
			return place{}, err
		}
	}
}

// dot is the place of "." or ".." in the root of an index.
func dot(name string, b Block) place {
	if name == ".." {
		return place{b: b, root: true, off: recMin, prev: 0}
	}
	return place{b: b, root: true, prev: -1}
}

func (d *Dir) findLinear(s Store, name string) (place, error) {
	var p pass
	for lblk := range s.Blocks() {
		b, err := p.leaf(d, s, lblk)
		if err != nil {
			return place{}, err
		}
		off, prev, err := d.findIn(lblk, b.Data(), name)
		if err == nil && off >= 0 {
			return place{b: b, lblk: lblk, off: off, prev: prev}, nil
		}
		b.Put()
		if err != nil {
			return place{}, err
		}
	}
	return place{}, ErrNotExist
}

// at is the entry at a place, without its name.
func (d *Dir) at(p place) Entry {
	data := p.b.Data()
	e := d.entry(data, p.off, record{ino: le.Uint32(data[p.off:])})
	e.Name = nil
	return e
}

// Lookup finds a name and gives its inode number and type. The error is ErrNotExist if it is not there.
func (d *Dir) Lookup(s Store, name string) (ino uint32, ft uint8, err error) {
	if l := d.listed.Load(); l != nil {
		return d.lookupAnyway(s, name, l.damage) // it may lie where the index does not look
	}
	p, err := d.find(s, name)
	if isDamage(err) && s.Indexed() {
		return d.lookupAnyway(s, name, err)
	}
	if err != nil {
		return 0, 0, err
	}
	e := d.at(p)
	p.b.Put()
	return e.Ino, e.Type, nil
}

// Replace makes a name that exists, ".." too, stand for another inode, and gives the one it stood for.
func (d *Dir) Replace(s Store, name string, ino uint32, ft uint8) (old uint32, err error) {
	if err := d.unchanging(); err != nil {
		return 0, err
	}
	p, err := d.find(s, name)
	if err != nil {
		return 0, err
	}
	defer p.b.Put()
	old = d.at(p).Ino
	s.Change(p.b)
	data := p.b.Data()
	le.PutUint32(data[p.off:], ino)
	if d.filetype {
		data[p.off+7] = ft
	}
	return old, d.changed(s, p)
}

// Remove takes a name out and gives the inode it stood for.
func (d *Dir) Remove(s Store, name string) (ino uint32, err error) {
	if isDot(name) {
		panic("dir: removing " + name)
	}
	if err := d.unchanging(); err != nil {
		return 0, err
	}
	p, err := d.find(s, name)
	if err != nil {
		return 0, err
	}
	defer p.b.Put()
	ino = d.at(p).Ino
	s.Change(p.b)
	d.removeFrom(p.b.Data(), p.off, p.prev)
	return ino, d.changed(s, p)
}

// changed completes a change at a place.
func (d *Dir) changed(s Store, p place) error {
	if !p.root {
		d.leafChanged(s, p.b)
		return nil
	}
	n, err := d.parseNode(0, p.b.Data(), rootEntries)
	if err != nil {
		return err
	}
	n.b = p.b
	d.nodeChanged(s, &n)
	return nil
}
