package jbd2

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/lanefs/lanefs/blockdev"
)

// replayBatch is how many bytes are copied home at a time.
const replayBatch = 8 << 20

// Needed says whether the log holds blocks that the volume does not, or was not marked empty.
func (r *Recovery) Needed() bool { return r.l.sb.start != 0 }

// Blocks is how many blocks the log holds that the volume does not.
func (r *Recovery) Blocks() int { return len(r.blocks) }

// Overlay shows what Replay would write, for a mount that must not write.
func (r *Recovery) Overlay() *Overlay {
	return &Overlay{r}
}

// Overlay is the committed content of a log that was not written home. A Cache with an overlay shows the volume as it
// will be after recovery, without a write.
type Overlay struct{ r *Recovery }

// Read reads block b into s if the log holds it.
func (o *Overlay) Read(b Block, s blockdev.Slice) (bool, error) {
	g, ok := o.r.blocks[b]
	if !ok {
		return false, nil
	}
	phys, _ := o.r.l.m.at(g.pos)
	if err := o.r.l.c.dev.Read(o.r.l.c.off(phys), s); err != nil {
		return true, fmt.Errorf("metadata block %d in journal block %d: %w", b, g.pos, err)
	}
	if g.escaped {
		be.PutUint32(s.Bytes(), magic)
	}
	return true, nil
}

// Replay is the third pass: it writes the newest committed copy of each block home, durably, but for those that the caller
// writes himself. What the Cache holds may be older then: see Cache.Invalidate. tell hears how many of the blocks are home; nil: nobody
// listens. It may be repeated.
func (r *Recovery) Replay(tell func(done, total int), except ...Block) error {
	if len(r.blocks) == 0 {
		return nil
	}
	type home struct {
		to Block
		logged
	}
	list := make([]home, 0, len(r.blocks))
	for b, g := range r.blocks {
		if !slices.Contains(except, b) {
			list = append(list, home{b, g})
		}
	}
	slices.SortFunc(list, func(a, b home) int { return cmp.Compare(a.to, b.to) })
	c, done := r.l.c, 0
	for batch := range slices.Chunk(list, max(int(min(replayBatch, c.budget.stage/2))/c.blockSize, 1)) {
		places, err := c.stage.take(len(batch), nil)
		if err != nil {
			return fmt.Errorf("memory to replay the journal: %w", err)
		}
		reqs := make([]*blockdev.Request, len(batch))
		out := make([]placed, len(batch))
		for i, h := range batch {
			phys, _ := r.l.m.at(h.pos)
			x := places[i]
			reqs[i] = &blockdev.Request{Op: blockdev.OpRead, Off: c.off(phys),
				Bufs: []blockdev.Slice{x.chunk.buf.Slice(x.n*c.blockSize, c.blockSize)}}
			out[i] = placed{h.to, x}
		}
		for some := range slices.Chunk(reqs, maxRequests) {
			if err = c.dev.Do(some...); err != nil {
				err = fmt.Errorf("journal: %w", err)
				break
			}
		}
		if err == nil {
			for i, h := range batch {
				if h.escaped {
					be.PutUint32(c.stage.data(places[i]), magic)
				}
			}
			c.counters.read.Add(int64(len(batch) * c.blockSize))
			err = c.writeStaged(out, false, func(n int64) { c.counters.written.Add(n) })
		}
		c.stage.drop(places...)
		if err != nil {
			return fmt.Errorf("replaying the journal: %w", err)
		}
		if done += len(batch); tell != nil {
			tell(done, len(list))
		}
	}
	return c.FlushDevice()
}

// Finish marks the log empty, durably. Replay, and what the fast commits ask for, must be done and flushed before.
func (r *Recovery) Finish() error {
	l := r.l
	if err := l.c.FlushDevice(); err != nil {
		return err
	}
	l.sb.start = 0
	l.sb.sequence = r.end
	l.sb.head = r.head
	l.sb.incompat &^= FeatureFastCommit // set again by a driver that writes fast commits
	l.relayout()
	return l.writeSuper()
}
