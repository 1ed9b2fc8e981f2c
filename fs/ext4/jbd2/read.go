package jbd2

import "github.com/lanefs/lanefs/blockdev"

// maxRequest is the largest transfer asked of the device at once. The device splits what is too large for it.
const maxRequest = 1 << 20

// maxRequests is how many requests go into one Device.Do.
const maxRequests = 1024

// Get returns block b, reading it if it is not in memory. Concurrent calls for the same block share one read.
func (c *Cache) Get(b Block) (*Buffer, error) {
	if err := c.check(b); err != nil {
		return nil, err
	}
	buf, l, mine, err := c.lookup(b)
	if err != nil {
		return nil, err
	}
	if mine {
		err = c.fill(buf)
		buf.finish(l, err)
		if err != nil {
			buf.unref()
			return nil, err
		}
		return buf, nil
	}
	if err := buf.wait(l); err != nil {
		return nil, err
	}
	return buf, nil
}

// New returns block b filled with zeroes, without reading it: the caller is about to write all of it. It counts as
// verified. The caller dirties it under a Handle before Put, or the zeroes may be forgotten.
func (c *Cache) New(b Block) (*Buffer, error) {
	if err := c.check(b); err != nil {
		return nil, err
	}
	for {
		buf, l, mine, err := c.lookup(b)
		if err != nil {
			return nil, err
		}
		if mine {
			clear(buf.data)
			buf.verified.Store(true)
			buf.finish(l, nil)
			return buf, nil
		}
		if buf.wait(l) != nil {
			continue // someone else's read failed; ours needs none
		}
		buf.Lock()
		clear(buf.data)
		buf.verified.Store(true)
		buf.Unlock()
		return buf, nil
	}
}

// GetMany is Get of several blocks, whose reads run together. On an error nothing is held.
func (c *Cache) GetMany(blocks ...Block) ([]*Buffer, error) {
	for _, b := range blocks {
		if err := c.check(b); err != nil {
			return nil, err
		}
	}
	bufs := make([]*Buffer, 0, len(blocks))
	loads := make([]*load, 0, len(blocks))
	err := c.start(blocks, func(buf *Buffer, l *load) { bufs, loads = append(bufs, buf), append(loads, l) })
	for i, buf := range bufs {
		if werr := buf.wait(loads[i]); werr != nil {
			bufs[i] = nil
			if err == nil {
				err = werr
			}
		}
	}
	if err == nil {
		return bufs, nil
	}
	for _, buf := range bufs {
		if buf != nil {
			buf.unref()
		}
	}
	return nil, err
}

// start references all blocks, reading those that are neither read nor being read, and returns when its own reads are
// done. Errors of reads are in the buffers' loads; the error returned says why not all blocks were taken.
func (c *Cache) start(blocks []Block, taken func(*Buffer, *load)) error {
	var fills []pendingFill
	var err error
	for _, b := range blocks {
		var buf *Buffer
		var l *load
		var mine bool
		if buf, l, mine, err = c.lookup(b); err != nil {
			break
		}
		taken(buf, l)
		if mine {
			fills = append(fills, pendingFill{buf, l})
		}
	}
	c.fillAll(fills)
	return err
}

type pendingFill struct {
	buf  *Buffer
	load *load
}

// fill reads one buffer.
func (c *Cache) fill(b *Buffer) error {
	if o := c.overlay.Load(); o != nil {
		if ok, err := o.Read(b.block, c.slots.slice(b.slot)); ok || err != nil {
			return err
		}
	}
	if err := c.dev.Read(c.off(b.block), c.slots.slice(b.slot)); err != nil {
		return &ReadError{b.block, err}
	}
	c.counters.read.Add(int64(c.blockSize))
	return nil
}

// fillAll reads buffers together, neighbours in one request, and finishes their loads.
func (c *Cache) fillAll(fills []pendingFill) {
	if c.overlay.Load() != nil || len(fills) == 1 {
		for _, f := range fills {
			f.buf.finish(f.load, c.fill(f.buf))
		}
		return
	}
	for len(fills) > 0 {
		var reqs []*blockdev.Request
		var owners [][]pendingFill
		n := 0
		for n < len(fills) && len(reqs) < maxRequests {
			first := n
			r := &blockdev.Request{Op: blockdev.OpRead, Off: c.off(fills[n].buf.block)}
			for {
				r.Bufs = append(r.Bufs, c.slots.slice(fills[n].buf.slot))
				n++
				// Pieces smaller than a page cannot be strung together in one command.
				if n == len(fills) || c.blockSize < 4096 || fills[n].buf.block != fills[n-1].buf.block+1 ||
					(n-first)*c.blockSize >= maxRequest {
					break
				}
			}
			reqs = append(reqs, r)
			owners = append(owners, fills[first:n])
		}
		_ = c.dev.Do(reqs...) // each request's own error is looked at
		for i, r := range reqs {
			err := r.Err
			if err == nil {
				c.counters.read.Add(int64(len(owners[i]) * c.blockSize))
			}
			for _, f := range owners[i] {
				if err != nil {
					err = &ReadError{f.buf.block, r.Err}
				}
				f.buf.finish(f.load, err)
			}
		}
		fills = fills[n:]
	}
}
