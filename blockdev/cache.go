package blockdev

import (
	"io"
	"math/rand/v2"
	"os"
)

// cache is a volatile write cache. The file has what reads see; undo has what the medium holds where no flush has followed a write.
type cache struct {
	undo []undo           // oldest first
	lost map[int64][]byte // what the medium holds of blocks that a failed flush lost, by offset
}

type undo struct {
	off int64
	old []byte
}

// CacheWrites makes writes without FUA volatile from now on: until the next Flush, Cut may lose them.
func (d *TestDevice) CacheWrites() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cache = &cache{lost: map[int64][]byte{}}
}

// Cut is a power cut: rng chooses, block by block, which of the writes since the last flush survive; the others are undone. With a nil
// rng none survives. The device stays open. No request may be in flight.
func (d *TestDevice) Cut(rng *rand.Rand) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cache == nil {
		return nil
	}
	bs := int64(d.info.BlockSize)
	// Undo writes from the newest to the oldest. When a write to a block survives, the older ones do not matter for that block.
	kept := map[int64]bool{}
	for i := len(d.cache.undo) - 1; i >= 0; i-- {
		u := d.cache.undo[i]
		for o := int64(0); o < int64(len(u.old)); o += bs {
			at := u.off + o
			if kept[at] {
				continue
			}
			if rng != nil && rng.IntN(2) == 0 {
				kept[at] = true
				continue
			}
			if _, err := d.file.WriteAt(u.old[o:o+bs], at); err != nil {
				return err
			}
		}
	}
	d.cache.flush()
	for off, old := range d.cache.lost {
		if _, err := d.file.WriteAt(old, off); err != nil {
			return err
		}
	}
	clear(d.cache.lost)
	return nil
}

func (c *cache) flush() { c.undo = nil }

// lose loses what was written since the last flush, in blocks of bs bytes: reads see it, no later flush makes it durable, and a Cut
// undoes it. A block that is written again is as any other.
func (c *cache) lose(bs int64) {
	for _, u := range c.undo { // the oldest is what the medium holds
		for o := int64(0); o < int64(len(u.old)); o += bs {
			if _, ok := c.lost[u.off+o]; !ok {
				c.lost[u.off+o] = u.old[o : o+bs]
			}
		}
	}
	c.undo = nil
}

// found removes the blocks of n bytes at off from lost, since they are about to be written. old is what reads see there; found replaces
// lost blocks in it by what the medium holds.
func (c *cache) found(off, n, bs int64, old []byte) {
	for o := int64(0); o < n; o += bs {
		if b, ok := c.lost[off+o]; ok {
			copy(old[o:], b)
			delete(c.lost, off+o)
		}
	}
}

func (c *cache) save(f *os.File, off, n, bs int64) error {
	old := make([]byte, n)
	if _, err := f.ReadAt(old, off); err != nil && err != io.EOF {
		return err
	}
	c.found(off, n, bs, old)
	c.undo = append(c.undo, undo{off, old})
	return nil
}

// store writes b at off.
func (d *TestDevice) store(off int64, b []byte, fua bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cache != nil {
		if fua {
			d.cache.forget(off, int64(len(b)))
			d.cache.found(off, int64(len(b)), int64(d.info.BlockSize), make([]byte, len(b)))
		} else if err := d.cache.save(d.file, off, int64(len(b)), int64(d.info.BlockSize)); err != nil {
			return err
		}
	}
	_, err := d.file.WriteAt(b, off)
	return err
}

// forget makes n bytes at off durable: no Cut undoes them.
func (c *cache) forget(off, n int64) {
	var left []undo
	for _, u := range c.undo {
		end := u.off + int64(len(u.old))
		if end <= off || u.off >= off+n {
			left = append(left, u)
			continue
		}
		if u.off < off {
			left = append(left, undo{u.off, u.old[:off-u.off]})
		}
		if end > off+n {
			left = append(left, undo{off + n, u.old[off+n-u.off:]})
		}
	}
	c.undo = left
}
