package media

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Nobody but LaneFS may write to an image that is mounted, and nothing keeps other programs from it: a copy over the image, above all, which is as long as the image was before anybody
// looks. So while the image is idle its modification time is remembered, and compared before the next write. What differs is logged, once: a program may also have set the time alone. What is
// written by others while LaneFS writes is not noticed.

// idleAfter is how long nothing must have been written since a flush, at least, until the time is remembered. It is replaced by tests.
var idleAfter = 2 * time.Second

// States of a watch.
const (
	busy    = iota // it was written since the last flush
	flushed        // and not since
	settled        // nor in the time before the timer's last run
	idle           // the modification time is known
)

// watch notices what others write to an image file. The zero value is busy.
type watch struct {
	state   atomic.Int32
	armed   atomic.Bool // the timer runs
	ended   atomic.Bool
	changed atomic.Bool // by others, which was logged
	mu      sync.Mutex
	at      unix.Timespec // protected by mu: the modification time while idle
}

// writes is called before each write. It costs a look while writes follow one another.
func (m *Image) writes() {
	if m.watch.state.Load() != busy {
		m.awake()
	}
}

// awake compares the time, if it is known. Other writes wait meanwhile, which would change it.
func (m *Image) awake() {
	w := &m.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state.Load() == idle {
		if now, ok := m.modified(); ok && now != w.at && !w.changed.Swap(true) {
			m.log.Error("another program has written to the image while it is mounted, or has set its time: unmount it, and copy it again as a whole or run e2fsck on it",
				"image", m.path, "modified", time.Unix(now.Unix()))
		}
	}
	w.state.Store(busy)
}

// quiet is called after each flush that went well.
func (m *Image) quiet() {
	w := &m.watch
	if w.state.CompareAndSwap(busy, flushed) && w.armed.CompareAndSwap(false, true) {
		time.AfterFunc(idleAfter, m.look)
	}
}

// look is the timer's.
func (m *Image) look() {
	w := &m.watch
	switch {
	case w.ended.Load():
		return
	case w.state.CompareAndSwap(flushed, settled):
		time.AfterFunc(idleAfter, m.look)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.armed.Store(false)
	if w.ended.Load() {
		return
	}
	if at, ok := m.modified(); ok {
		w.at = at
		w.state.CompareAndSwap(settled, idle) // unless a write came meanwhile
	}
}

// end is for Close: the descriptor may soon be another file's.
func (w *watch) end() {
	w.ended.Store(true)
	w.mu.Lock() // what looks now has looked
	defer w.mu.Unlock()
	w.state.Store(busy)
}

// modified is the image's modification time.
func (m *Image) modified() (at unix.Timespec, ok bool) {
	var st unix.Stat_t
	if unix.Fstat(m.fd, &st) != nil {
		return at, false
	}
	return st.Mtim, true
}
