package residency

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/calls"
)

// take allocates memory for n bytes. It evicts ranges without holds if there is no room, and returns errFull if that is not enough, ErrGivenUp if gone is closed meanwhile.
func (p *Pool) take(n int64, gone <-chan struct{}) (*Memory, error) {
	if n > p.c.Size { // before rounding up, which might overflow
		return nil, fmt.Errorf("%d bytes: %w: it has %d in all (-o vram=SIZE)", n, errFull, p.c.Size)
	}
	size := p.Round(n)
	p.mu.Lock()
	var victims []*fileRange
	left := p.used
	for e := p.idle.Front(); e != nil && left+size > p.c.Size; e = e.Next() {
		if r := e.Value.(*fileRange); !p.pinned[r.key] {
			victims = append(victims, r)
			left -= r.size
		}
	}
	if left+size > p.c.Size {
		p.mu.Unlock()
		return nil, fmt.Errorf("%d bytes: %w: %d of %d are held or pinned", n, errFull, left, p.c.Size)
	}
	for _, r := range victims {
		p.dropLocked(r)
		p.count.evicted++
	}
	p.used += size
	p.mu.Unlock()
	m, ended, err := await(p.c.Failed, gone, func() (*Memory, error) {
		var errs []error
		for _, r := range victims {
			errs = append(errs, r.mem.close())
		}
		m, err := p.alloc(size)
		if err = errors.Join(append(errs, err)...); err != nil && m != nil {
			return nil, errors.Join(err, m.close())
		}
		return m, err
	}, func(m *Memory) {
		if m != nil {
			_ = m.close() // likewise
		}
		p.give(size)
	})
	if ended && err != nil {
		p.give(size)
	}
	return m, err
}

func (p *Pool) alloc(size int64) (*Memory, error) {
	g, err := p.c.Runtime.Alloc(p.kind, size)
	if err != nil && p.awaitFrees() { // which the pool does not count any more
		g, err = p.c.Runtime.Alloc(p.kind, size)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", syscall.ENOMEM, err)
	}
	m, err := p.newMemory(g, true)
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	m.zero.Store(p.sealed) // a memfd's new pages are zero
	return m, nil
}

func (p *Pool) give(size int64) {
	p.mu.Lock()
	p.used -= size
	p.mu.Unlock()
}

// Alloc returns a hold on memory that no other hold shares. If load is not nil it fills the first n bytes; the rest is zero.
// Once gone is closed who waits for the runtime gets ErrGivenUp; nil never is.
func (p *Pool) Alloc(n int64, load func(*Memory) error, gone <-chan struct{}) (*Hold, error) {
	if n <= 0 {
		return nil, fmt.Errorf("%d bytes of device memory: %w", n, syscall.EINVAL)
	}
	m, err := p.take(n, gone)
	if err != nil {
		return nil, err
	}
	r := &fileRange{n: n, size: m.Size(), mem: m, holds: map[*Hold]bool{}, ready: make(chan struct{})}
	close(r.ready)
	h := &Hold{p: p, r: r}
	r.holds[h] = true
	if err := m.fill(n, load); err != nil {
		h.Release()
		return nil, err
	}
	return h, nil
}

// fill has load fill the first n bytes, or nil none. The rest, which may be bytes of another file, becomes zero.
func (m *Memory) fill(n int64, load func(*Memory) error) (err error) {
	from := int64(0)
	if load != nil {
		if g, ok := m.mem.(populator); ok {
			g.Populate(n)
		}
		err, from = load(m), n
	}
	if err == nil {
		err = m.Zero(int(from), int(m.Size()-from))
	}
	m.zero.Store(false)
	return err
}

// Import makes a Memory of memory that a program has exported. The caller closes it. gone is as for Alloc.
func (p *Pool) Import(e gpu.Export, gone <-chan struct{}) (*Memory, error) {
	rt, device, failed := p.c.Runtime, true, p.c.Failed
	if e.Kind == gpu.ExportMemFD && p.c.Host != nil {
		rt, device, failed = p.c.Host, false, nil
	}
	fd, err := unix.FcntlInt(uintptr(e.FD), unix.F_DUPFD_CLOEXEC, 0) // the caller closes its own, which the call may outlast
	if err != nil {
		return nil, fmt.Errorf("the descriptor of a program's memory: %w", err)
	}
	e.FD = fd
	m, _, err := await(failed, gone, func() (*Memory, error) {
		defer unix.Close(fd)
		return p.importFrom(rt, device, e)
	}, func(m *Memory) {
		if m != nil {
			_ = m.close() // nothing can be done about an error: the memory is lost
		}
	})
	return m, err
}

func (p *Pool) importFrom(rt gpu.Runtime, device bool, e gpu.Export) (*Memory, error) {
	g, err := rt.Import(e)
	switch {
	case errors.Is(err, calls.ErrHangs):
		return nil, fmt.Errorf("%w: %w", syscall.EIO, err)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", syscall.EINVAL, err)
	}
	m, err := p.newMemory(g, device)
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return m, nil
}

// Close closes a Memory that Import returned.
func (m *Memory) Close() error { return m.close() }
