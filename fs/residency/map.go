package residency

import (
	"fmt"
	"math"
	"syscall"
)

// maxLoads is how many times Map reads a range that changes while it is read.
const maxLoads = 4

// Want is a request to Map.
type Want struct {
	Key    Key
	Name   string // of the file, for Stats
	Off, N int64
	// ToEnd says that the range goes to the end of the file. Then a write behind the range changes it, too.
	ToEnd bool
	// Admit is called with the number of bytes before memory is allocated for a range that is not resident. An error fails Map. It is
	// called under the pool's lock. nil: none.
	Admit func(bytes int64) error
	// Load reads the range to offset 0 of m.
	Load func(m *Memory) error
	// Notify is called with the new generation when the range is no longer current. It is called under the pool's lock and may only
	// store the generation.
	Notify func(generation uint64)
	// Waker is signalled after Notify, without a lock held: once for all ranges that a change touches.
	Waker Waker
	// Gone is closed when nobody wants the range any more. nil: never.
	Gone <-chan struct{}
}

// ErrGivenUp says that a caller did not wait any longer for others, since nobody wants what it was to get.
var ErrGivenUp = fmt.Errorf("nobody waits for it any more: %w", syscall.ESHUTDOWN)

// Map returns a hold on a range. If no current range contains it, it is read. Errors: EINVAL for a range that cannot be, ENOMEM if held
// ranges leave no room, ESHUTDOWN after Close, those of Admit and Load, ErrGivenUp if another caller reads the range and Gone is closed meanwhile.
func (p *Pool) Map(w Want) (*Hold, error) {
	if w.Off < 0 || w.N <= 0 || w.N > math.MaxInt64/2 || w.Off > math.MaxInt64/2 {
		return nil, fmt.Errorf("%d bytes at %d: %w", w.N, w.Off, syscall.EINVAL)
	}
	for try := 1; ; try++ {
		h, load, err := p.enter(w)
		if err != nil {
			return nil, err
		}
		if load {
			p.load(h.r, w)
		} else {
			select {
			case <-h.r.ready:
			case <-w.Gone:
				h.Release()
				return nil, ErrGivenUp
			}
		}
		if h.r.err != nil {
			err := h.r.err
			h.Release()
			if !load && try < maxLoads {
				continue // the load of another caller has failed
			}
			return nil, err
		}
		if h.current() || try >= maxLoads {
			return h, nil
		}
		h.Release()
	}
}

// enter finds a range for w, or makes one. The bool says that it is new and the caller must load it.
func (p *Pool) enter(w Want) (*Hold, bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, false, syscall.ESHUTDOWN
	}
	for r := range p.files[w.Key.Ino] {
		if r.key == w.Key && r.gen == r.now && r.off <= w.Off && w.Off+w.N <= r.off+r.n && (!w.ToEnd || r.end == math.MaxInt64) {
			p.count.shared++
			return p.holdLocked(r, w), false, nil
		}
	}
	if w.Admit != nil {
		if err := w.Admit(p.Round(w.N)); err != nil {
			return nil, false, err
		}
	}
	r := &fileRange{key: w.Key, name: w.Name, off: w.Off, n: w.N, end: w.Off + w.N, holds: map[*Hold]bool{}, ready: make(chan struct{}), listed: true}
	if w.ToEnd {
		r.end = math.MaxInt64
	}
	p.gen++
	r.gen, r.now = p.gen, p.gen
	of := p.files[w.Key.Ino]
	if of == nil {
		of = map[*fileRange]bool{}
		p.files[w.Key.Ino] = of
	}
	of[r] = true
	return p.holdLocked(r, w), true, nil
}

func (p *Pool) holdLocked(r *fileRange, w Want) *Hold {
	h := &Hold{p: p, r: r, notify: w.Notify, waker: w.Waker}
	if r.idle != nil {
		p.idle.Remove(r.idle)
		r.idle = nil
	}
	r.holds[h] = true
	return h
}

// load reads r. It is called once, by the caller of enter.
func (p *Pool) load(r *fileRange, w Want) {
	m, err := p.take(r.n, w.Gone)
	if err == nil {
		p.mu.Lock()
		r.mem, r.size = m, m.Size()
		p.mu.Unlock()
		err = m.fill(r.n, w.Load)
	}
	p.mu.Lock()
	if r.err = err; err != nil {
		p.unlistLocked(r)
	} else {
		m.read.Store(r.n)
		p.count.loads++
		p.count.loaded += r.n
	}
	p.mu.Unlock()
	close(r.ready)
}
