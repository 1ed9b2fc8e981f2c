package dir

// maxPath is the most index nodes on a path, root included.
const maxPath = 3

// cursor is a place in the index: the path from the root to the node above a leaf, and at each node the entry taken.
type cursor struct {
	d     *Dir
	s     Store
	hash  Hash
	path  [maxPath]node
	at    [maxPath]int
	n     int // nodes on the path
	steps uint32
	pass  pass // through the leaves
}

// open reads the root.
func (c *cursor) open(d *Dir, s Store) (err error) {
	c.d, c.s = d, s
	var h rootHeader
	if c.path[0], h, err = d.root(s); err != nil {
		return err
	}
	c.n = 1
	c.hash = d.hash
	c.hash.Version = h.version
	return nil
}

// levels is the number of nodes below the root on a path.
func (c *cursor) levels() int { return int(c.path[0].data[rootInfo+6]) }

// close drops the path.
func (c *cursor) close() { c.cut(0) }

func (c *cursor) cut(n int) {
	for c.n > n {
		c.n--
		c.path[c.n].b.Put()
		c.path[c.n].b = nil
	}
}

// probe goes down to where names with the hash begin.
func (c *cursor) probe(hash uint32) error {
	c.cut(1)
	for {
		f := &c.path[c.n-1]
		lo, hi := 1, f.count // the first entry beyond hash is in between
		for lo < hi {
			if m := (lo + hi) / 2; f.hash(m) > hash {
				hi = m
			} else {
				lo = m + 1
			}
		}
		c.at[c.n-1] = lo - 1
		if c.n > c.levels() {
			return nil
		}
		if err := c.down(); err != nil {
			return err
		}
	}
}

// down reads the node that the path's last entry names.
func (c *cursor) down() error {
	f := &c.path[c.n-1]
	lblk := f.block(c.at[c.n-1])
	if err := c.check(lblk); err != nil {
		return err
	}
	n, err := c.d.node(c.s, lblk, nodeEntries)
	if err != nil {
		return err
	}
	c.path[c.n], c.at[c.n] = n, 0
	c.n++
	return nil
}

// check refuses a block that the last entry of the path cannot name.
func (c *cursor) check(lblk uint32) error {
	if f := &c.path[c.n-1]; lblk == 0 || lblk >= c.s.Blocks() {
		return c.d.corrupt(f.lblk, f.entries+dxEntry*c.at[c.n-1], "index names block %d of %d", lblk, c.s.Blocks())
	}
	return nil
}

// leaf reads the leaf at the cursor.
func (c *cursor) leaf() (Block, uint32, error) {
	lblk := c.path[c.n-1].block(c.at[c.n-1])
	if err := c.check(lblk); err != nil {
		return nil, 0, err
	}
	b, err := c.pass.leaf(c.d, c.s, lblk)
	return b, lblk, err
}

// low is the hash from which on names are in this leaf, with its bit for continuation; 0 for the first leaf.
func (c *cursor) low() uint32 {
	for i := c.n - 1; i >= 0; i-- {
		if c.at[i] > 0 {
			return c.path[i].hash(c.at[i])
		}
	}
	return 0
}

// high is the low of the next leaf, false if this is the last one.
func (c *cursor) high() (uint32, bool) {
	for i := c.n - 1; i >= 0; i-- {
		if c.at[i]+1 < c.path[i].count {
			return c.path[i].hash(c.at[i] + 1), true
		}
	}
	return 0, false
}

// bounds is the lowest and the highest hash that names in this leaf can have.
func (c *cursor) bounds() (low, last uint32, err error) {
	low, last = c.low()&^1, maxHash
	switch high, more := c.high(); {
	case more && high&1 != 0:
		last = high - 1
	case more && high > 0:
		last = high - 2
	}
	if last < low {
		n := &c.path[c.n-1]
		err = c.d.corrupt(n.lblk, n.entries+dxEntry*c.at[c.n-1], "index is out of order")
	}
	return low, last, err
}

// next goes to the next leaf. It reports false at the end.
func (c *cursor) next() (bool, error) {
	i := c.n - 1
	for i >= 0 && c.at[i]+1 >= c.path[i].count {
		i--
	}
	if i < 0 {
		return false, nil
	}
	if c.steps++; c.steps > c.s.Blocks() {
		return false, c.d.corrupt(0, rootEntries, "index has more entries than the directory has blocks")
	}
	c.at[i]++
	for c.cut(i + 1); c.n <= c.levels(); {
		if err := c.down(); err != nil {
			return false, err
		}
	}
	return true, nil
}
