package alloc

import (
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// Blocks that are free but must not be given out yet.

// pending is a run that was freed by a transaction which is not durable.
type pending struct {
	tid jbd2.TID
	run run
}

// holdLocked makes n blocks from off unavailable, whatever the block bitmap in buf says of them.
func (g *group) holdLocked(buf *jbd2.Buffer, off, n uint32) {
	if g.busy == nil {
		g.busy = append([]byte(nil), buf.Data()...)
	}
	setBits(g.busy, off, off+n)
	g.held += n
}

// unholdLocked makes blocks available that were held and are clear in the block bitmap.
func (g *group) unholdLocked(r run) {
	clearBits(g.busy, r.off, r.off+r.n)
	g.foundLocked(g.busy, r.off, r.n)
	g.droppedLocked(r.n)
}

// foundLocked notes that n blocks from off, clear in bitmap now, can be given out.
func (g *group) foundLocked(bitmap []byte, off, n uint32) {
	g.low = min(g.low, off)
	end := nextSet(bitmap, off+n, g.blocks)
	g.longest.Store(max(g.longest.Load(), end-runBefore(bitmap, off)))
}

// droppedLocked notes that n blocks are no longer held.
func (g *group) droppedLocked(n uint32) {
	g.held -= n
	if g.held == 0 {
		g.busy = nil // the block bitmap says the same
	}
	g.availLocked()
}

// pendLocked has r released when h's transaction is durable.
func (g *group) pendLocked(a *Allocator, h *jbd2.Handle, r run) {
	tid := h.TID()
	registered := false
	for _, p := range g.pending {
		registered = registered || p.tid == tid
	}
	if k := len(g.pending) - 1; k >= 0 && g.pending[k].tid == tid && g.pending[k].run.off == r.off+r.n {
		g.pending[k].run = run{r.off, r.n + g.pending[k].run.n} // files are truncated backwards
	} else if k >= 0 && g.pending[k].tid == tid && g.pending[k].run.off+g.pending[k].run.n == r.off {
		g.pending[k].run.n += r.n
	} else {
		g.pending = append(g.pending, pending{tid, r})
	}
	if !registered {
		h.OnCommit(func() { a.committed(g, tid) })
	}
}

// committed releases what transaction tid freed in group g. It runs on the goroutine that commits.
func (a *Allocator) committed(g *group, tid jbd2.TID) {
	g.mu.Lock()
	var mine []run
	rest := g.pending[:0]
	for _, p := range g.pending {
		if p.tid == tid {
			mine = append(mine, p.run)
		} else {
			rest = append(rest, p)
		}
	}
	g.pending = rest
	g.mu.Unlock()

	if discard := a.discard.Load(); discard != nil {
		for _, r := range mine {
			(*discard)(a.first(g)+disk.Block(r.off), r.n)
		}
	}

	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range mine {
		g.unholdLocked(r)
		a.released.Add(uint64(r.n)) // first: Pending says that it is done
		a.avail.Add(int64(r.n))
	}
}
