package jbd2

// Overlay is the committed content of a log that was not written home: block → content. A Cache with an overlay shows
// the volume as it will be after recovery, without a write.
type Overlay struct {
	blocks map[Block]func(p []byte) error
}

// Has says whether the log holds a newer content of b than the medium.
func (o *Overlay) Has(b Block) bool { _, ok := o.blocks[b]; return ok }

// Len is the number of blocks in the overlay.
func (o *Overlay) Len() int { return len(o.blocks) }

func (o *Overlay) read(b Block, p []byte) (bool, error) {
	f := o.blocks[b]
	if f == nil {
		return false, nil
	}
	return true, f(p)
}
