package copyengine

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/lanefs/lanefs/gpu"
)

// Pool is streams for copies between two addresses that a runtime's copy engines reach. The streams are made when first needed, at most
// poolStreams; further copies wait for one. After a copy that has not ended, or a call of the driver that does not return, none is begun any more, and those under way are not
// waited for: ErrStuck. The zero value has none. All methods may be called from any goroutine.
type Pool struct {
	mu     sync.Mutex
	idle   []*poolStream // protected by mu
	made   int           // protected by mu: they are, or the driver is asked for them
	free   sync.Cond     // a stream was given back, or was not made, or all are stuck; its lock is mu
	*watch               // protected by mu; nil: there was no stream yet
	tell   func(error)   // OnStuck
}

// poolStream is a stream whose hand makes the calls.
type poolStream struct {
	gpu.Stream
	hand *hand
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
	err = s.hand.do(func() error {
		if err := s.Copy(dst, src, n); err != nil {
			return err
		}
		err := await(s, mark{}, nil)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = fmt.Errorf("%w: %w", ErrStuck, err)
			s.hand.call.w.stick(err)
		}
		return err
	})
	p.give(s)
	return err
}

// take gives a stream of its own to a copy. Where no more can be made it waits for one that there is. The driver, which may not answer, is asked without the lock.
func (p *Pool) take(rt gpu.Runtime) (*poolStream, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free.L = &p.mu
	if p.watch == nil {
		p.watch = newWatch()
		p.watch.onStuck(func(why error) {
			p.mu.Lock()
			p.free.Broadcast()
			p.mu.Unlock()
			if p.tell != nil {
				p.tell(why)
			}
		})
	}
	w := p.watch
	for len(p.idle) == 0 && !w.isStuck() {
		if p.made < poolStreams {
			p.made++
			s, err := p.makeLocked(rt)
			if err == nil {
				return s, nil
			}
			p.made--
			if p.made == 0 {
				p.free.Broadcast() // nobody will give one back
				return nil, err
			}
			if len(p.idle) > 0 || w.isStuck() {
				break
			}
		}
		p.free.Wait()
	}
	if w.isStuck() {
		return nil, ErrStuck
	}
	s := p.idle[len(p.idle)-1]
	p.idle = p.idle[:len(p.idle)-1]
	return s, nil
}

// makeLocked makes a stream. It gives mu up meanwhile.
func (p *Pool) makeLocked(rt gpu.Runtime) (*poolStream, error) {
	w := p.watch
	p.mu.Unlock()
	defer p.mu.Lock()
	var s gpu.Stream
	if err := w.apart(func() (err error) { s, err = rt.NewStream(); return err }); err != nil {
		return nil, err
	}
	h := newHand(w)
	return &poolStream{handed{s, h.call}, h}, nil
}

// give takes a stream back; a stuck one stays out.
func (p *Pool) give(s *poolStream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !s.hand.call.w.isStuck() {
		p.idle = append(p.idle, s)
		p.free.Signal()
	}
}

// OnStuck has f called once when copies are stuck, with why. It comes before the first copy.
func (p *Pool) OnStuck(f func(error)) { p.tell = f }

// Stuck is ErrStuck once copies are stuck, else nil.
func (p *Pool) Stuck() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.watch != nil && p.isStuck() {
		return ErrStuck
	}
	return nil
}

// Forget leaves the streams to a runtime that has failed: they are not closed. No copy is under way any more, but what is stuck.
func (p *Pool) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle, p.made, p.watch = nil, 0, nil
}

// Close closes the streams, before their runtime is closed.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, s := range p.idle {
		if p.isStuck() {
			return errors.Join(append(errs, ErrStuck)...)
		}
		s.hand.close()
		errs = append(errs, p.apart(s.Stream.Close))
	}
	p.made, p.idle = p.made-len(p.idle), nil
	return errors.Join(errs...)
}
