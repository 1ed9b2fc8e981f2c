package dir

// Empty says whether a directory holds nothing but "." and "..".
func (d *Dir) Empty(s Store) (bool, error) {
	var p pass
	for lblk := range s.Blocks() {
		empty, err := d.emptyBlock(s, lblk, &p)
		if !empty || err != nil {
			return empty, err
		}
	}
	if s.Blocks() == 0 {
		return false, d.corrupt(0, 0, "directory has no blocks")
	}
	return true, nil
}

func (d *Dir) emptyBlock(s Store, lblk uint32, p *pass) (bool, error) {
	if s.Indexed() {
		if lblk == 0 {
			n, _, err := d.root(s)
			if err == nil {
				n.b.Put()
			}
			return true, err
		}
		b, err := d.get(s, lblk)
		if err != nil {
			return false, err
		}
		none := d.noNames(b)
		if none {
			err = p.took(d, b, lblk)
		}
		b.Put()
		if none {
			return err == nil, err
		}
	}
	b, err := p.leaf(d, s, lblk)
	if err != nil {
		return false, err
	}
	defer b.Put()
	data, off, end := b.Data(), 0, d.leafEnd()
	if lblk == 0 {
		if why := d.checkDots(data, d.leafEnd()); why != "" {
			return false, d.corrupt(0, 0, "%s", why)
		}
		off = recMin + getRecLen(data[recMin:], d.blockSize)
	}
	for off < end {
		r, why := d.rec(data, off, end)
		if why != "" {
			return false, d.corrupt(lblk, off, "%s", why)
		}
		if r.ino != 0 {
			return false, nil
		}
		off += r.size
	}
	return true, nil
}

// noNames says whether a block of an indexed directory is an index node, or without checksums a leaf that is one free
// record.
func (d *Dir) noNames(b Block) bool {
	return le.Uint32(b.Data()) == 0 && getRecLen(b.Data(), d.blockSize) == d.blockSize
}
