package blockdev

import (
	"io"
	"math/rand/v2"
	"os"
)

// cache remembers what the medium held before writes that no flush has covered yet.
type cache struct {
	undo []undo           // oldest first
	lost map[int64][]byte // what the medium holds instead of blocks that a failed flush gave up, by offset
}

type undo struct {
	off int64
	old []byte
}

// CacheWrites makes writes without FUA volatile from now on: they are durable after the next Flush, and Cut may lose
// them before it.
func (d *TestDevice) CacheWrites() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cache = &cache{lost: map[int64][]byte{}}
}

// Cut is a power cut: of the writes since the last flush, rng chooses which survive, block by block; the rest are as if
// they had never been sent. With a nil rng none survives. The device goes on with what is left. The caller sees to it
// that nothing is in flight.
func (d *TestDevice) Cut(rng *rand.Rand) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cache == nil {
		return nil
	}
	bs := int64(d.info.BlockSize)
	// A block that survives at one write keeps that write's bytes and loses the later ones: undo from the newest back,
	// and stop undoing a block at the first write that survives.
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

// lose gives up what no flush has covered, in blocks of bs bytes: reads see it, but no later flush makes it durable, and after a Cut
// it is gone. A block that is written again is as any other.
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

// found takes the blocks of n bytes at off from those that are lost: they are about to be written. old is what reads saw there, and
// becomes what the medium holds.
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

// forget makes n bytes at off durable: what they held before is not coming back.
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
