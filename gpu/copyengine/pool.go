package copyengine

import (
	"errors"
	"fmt"
	"sync"

	"github.com/lanefs/lanefs/gpu"
)

// Pool is streams for copies between two addresses that a runtime's copy engines reach. The streams are made when first needed, at most
// poolStreams; further copies wait for one. The zero value has none. All methods may be called from any goroutine.
type Pool struct {
	mu   sync.Mutex
	idle []gpu.Stream // protected by mu
	made int          // protected by mu
	free sync.Cond    // a stream was given back; its lock is mu
}

// poolStreams is how many copies run at once.
const poolStreams = 4

// Copy copies n bytes from src to dst, addresses of rt, and returns when they have arrived. All calls have the same rt, until Forget. Where rt makes no
// stream the error is gpu.ErrNotBegun.
func (p *Pool) Copy(rt gpu.Runtime, dst, src gpu.Addr, n int64) error {
	s, err := p.take(rt)
	if err != nil {
		return fmt.Errorf("a stream for a copy: %w: %w", gpu.ErrNotBegun, err)
	}
	defer p.give(s)
	if err := s.Copy(dst, src, n); err != nil {
		return err
	}
	return s.Wait(copyTimeout)
}

// take gives a stream of its own to a copy. Where no more can be made it waits for one that there is.
func (p *Pool) take(rt gpu.Runtime) (gpu.Stream, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free.L = &p.mu
	for len(p.idle) == 0 {
		if p.made < poolStreams {
			s, err := rt.NewStream()
			if err == nil {
				p.made++
				return s, nil
			}
			if p.made == 0 {
				return nil, err
			}
		}
		p.free.Wait()
	}
	s := p.idle[len(p.idle)-1]
	p.idle = p.idle[:len(p.idle)-1]
	return s, nil
}

func (p *Pool) give(s gpu.Stream) {
	p.mu.Lock()
	p.idle = append(p.idle, s)
	p.free.Signal()
	p.mu.Unlock()
}

// Forget leaves the streams to a runtime that has failed: they are not closed. No copy is under way any more.
func (p *Pool) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle, p.made = nil, 0
}

// Close closes the streams, before their runtime is closed.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, s := range p.idle {
		errs = append(errs, s.Close())
	}
	p.made, p.idle = p.made-len(p.idle), nil
	return errors.Join(errs...)
}
