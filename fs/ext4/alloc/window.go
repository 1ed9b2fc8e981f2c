package alloc

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// Window keeps free blocks after the end of a file for that file, so that several files which grow at the same time do
// not share out the volume in small pieces. Nothing of it is on the volume: a Window that is lost was only a preference.
// The zero Window is empty; its owner drops it with Drop.
type Window struct {
	mu   sync.Mutex // comes before the group's
	g    *group     // nil: empty
	run  run
	size uint32 // how many blocks to keep next
	last time.Time
}

// windows is all windows that hold something.
type windows struct {
	mu   sync.Mutex
	all  map[*Window]struct{} // protected by mu
	aged time.Time            // protected by mu
	held atomic.Int64         // blocks in them
}

// windowAge is for how long a file that does not grow keeps its window, more or less.
const windowAge = 5 * time.Second

const windowBytes = 8 << 20 // the most that a window keeps

// AllocWindow is Alloc for a file that grows: it takes blocks from w if w begins at goal, and keeps some for the next
// time. What w kept elsewhere is dropped.
func (a *Allocator) AllocWindow(h *jbd2.Handle, w *Window, goal disk.Block, want, least uint32, flags int) (disk.Block, uint32, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = time.Now()
	if w.g != nil && a.first(w.g)+disk.Block(w.run.off) == goal && w.run.n >= max(least, 1) {
		if w.run.n < want {
			a.extendLocked(w, max(w.size, want))
		}
		start, n, err := a.takeWindowLocked(h, w, want)
		if err == nil || !a.passes(&w.g.noBlocks, err) {
			return start, n, err
		}
	}
	a.dropLocked(w)
	start, n, err := a.Alloc(h, goal, want, least, flags)
	if err != nil || n < want || a.avail.Load() < a.free.Load()/16 {
		return start, n, err // a full volume: every block counts
	}
	w.size = min(max(w.size*2, want), windowBytes>>a.sb.BlockBits())
	g, off := a.groupOf(start)
	w.g, w.run = g, run{off + n, 0}
	a.extendLocked(w, w.size)
	return start, n, err
}

// takeWindowLocked takes up to want blocks from the front of w.
func (a *Allocator) takeWindowLocked(h *jbd2.Handle, w *Window, want uint32) (disk.Block, uint32, error) {
	g := w.g
	g.mu.Lock()
	defer g.mu.Unlock()
	buf, err := a.blockBitmapLocked(g)
	if err != nil {
		return 0, 0, err
	}
	defer buf.Put()
	n := min(want, w.run.n)
	start := a.first(g) + disk.Block(w.run.off)
	a.takeLocked(h, g, buf, w.run.off, n)
	g.droppedLocked(n)
	a.windows.held.Add(-int64(n))
	w.run.off += n
	w.run.n -= n
	return start, n, nil
}

// extendLocked keeps up to n more blocks at the end of w.
func (a *Allocator) extendLocked(w *Window, n uint32) {
	n = a.promise(n, 1, 0)
	if n == 0 {
		return
	}
	got := uint32(0)
	g := w.g
	g.mu.Lock()
	if buf, err := a.blockBitmapLocked(g); err == nil { // the next use of the bitmap meets the error again
		end := w.run.off + w.run.n
		if end < g.blocks {
			got = nextSet(g.bitmapLocked(buf), end, min(end+n, g.blocks)) - end
		}
		if got > 0 {
			g.holdLocked(buf, end, got)
			g.availLocked()
		}
		buf.Put()
	}
	g.mu.Unlock()
	a.avail.Add(int64(n) - int64(got))
	if got == 0 {
		return
	}
	w.run.n += got
	a.windows.held.Add(int64(got))
	a.windows.mu.Lock()
	if a.windows.all == nil {
		a.windows.all = map[*Window]struct{}{}
	}
	a.windows.all[w] = struct{}{}
	a.windows.mu.Unlock()
}

// Drop gives back what w keeps.
func (a *Allocator) Drop(w *Window) {
	w.mu.Lock()
	a.dropLocked(w)
	w.mu.Unlock()
}

func (a *Allocator) dropLocked(w *Window) {
	g := w.g
	if g == nil {
		return
	}
	w.g = nil
	a.windows.mu.Lock()
	delete(a.windows.all, w)
	a.windows.mu.Unlock()
	if w.run.n == 0 {
		return
	}
	g.mu.Lock()
	g.unholdLocked(w.run)
	g.mu.Unlock()
	a.windows.held.Add(-int64(w.run.n))
	a.avail.Add(int64(w.run.n))
	w.run = run{}
}

// AgeWindows drops what is kept for files that have not grown for a while. It is called now and then.
func (a *Allocator) AgeWindows() {
	now := time.Now()
	a.windows.mu.Lock()
	if now.Sub(a.windows.aged) < windowAge/4 {
		a.windows.mu.Unlock()
		return
	}
	a.windows.aged = now
	var all []*Window
	for w := range a.windows.all {
		all = append(all, w)
	}
	a.windows.mu.Unlock()
	for _, w := range all {
		if !w.mu.TryLock() {
			continue // it grows now
		}
		if now.Sub(w.last) >= windowAge {
			a.dropLocked(w)
		}
		w.mu.Unlock()
	}
}

// dropWindows empties all windows, because an allocation finds no space. It reports whether there was anything.
func (a *Allocator) dropWindows() bool {
	a.windows.mu.Lock()
	var all []*Window
	for w := range a.windows.all {
		all = append(all, w)
	}
	a.windows.mu.Unlock()
	for _, w := range all {
		// One that is being used may be the caller's own, which holds it here.
		if w.mu.TryLock() {
			a.dropLocked(w)
			w.mu.Unlock()
		}
	}
	return len(all) > 0
}
