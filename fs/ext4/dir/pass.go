package dir

// passFree is how many blocks a pass reads before it looks whether one comes again.
const passFree = 1024

// pass is one way through a directory's blocks, which ends. A damaged directory may say that it has billions of blocks, and its
// tree, or its index, may have the same few at all those places: whoever looks for a name there would hold the directory's lock for
// hours. No block of a whole directory comes twice, so one that does is damage, and a pass is no longer than what
// the volume really stores. Directories that are small take no memory for this.
type pass struct {
	n    int
	seen map[uint64]uint64 // a bit for each block on the volume, 64 in a word
}

// leaf is Dir.leaf for the next block of the pass.
func (p *pass) leaf(d *Dir, s Store, lblk uint32) (Block, error) {
	b, err := d.leaf(s, lblk)
	if err != nil {
		return nil, err
	}
	if err := p.took(d, b, lblk); err != nil {
		b.Put()
		return nil, err
	}
	return b, nil
}

// took counts a block, and refuses one that has come before.
func (p *pass) took(d *Dir, b Block, lblk uint32) error {
	if p.n++; p.n <= passFree {
		return nil
	}
	if p.seen == nil {
		p.seen = map[uint64]uint64{}
	}
	no := uint64(b.Block())
	word, bit := no/64, uint64(1)<<(no%64)
	if p.seen[word]&bit != 0 {
		return d.corrupt(lblk, 0, "block %d of the volume is at two places of the directory", no)
	}
	p.seen[word] |= bit
	return nil
}
