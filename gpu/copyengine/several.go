package copyengine

import (
	"errors"

	"github.com/lanefs/lanefs/gpu"
)

// Several is a Mover, Stager and Piper for the memory of several GPUs of one driver: each copy goes by the engine of the GPU whose memory it is. Stages and what
// is pinned are the first GPU's; such drivers give host memory one address for all GPUs (portable memory, which all our kinds are).
type Several struct {
	first *Engine
	of    map[string]*Engine // by gpu.Reach.Device
}

// NewSeveral joins engines of different devices. They stay their callers' to close, and to count.
func NewSeveral(engines []*Engine) *Several {
	s := &Several{first: engines[0], of: map[string]*Engine{}}
	for _, e := range engines {
		s.of[e.rt.Facts().PCI] = e
		for _, other := range engines {
			if other != e {
				e.beside = append(e.beside, other)
			}
		}
	}
	return s
}

// engine is the one that reaches m.
func (s *Several) engine(m gpu.Memory) *Engine {
	if e := s.of[m.Reach().Device]; e != nil {
		return e
	}
	return s.first
}

// Read and Write implement Mover, Stage and Unstage Stager; Pin and Unpin are Engine's.
func (s *Several) Read(dst []byte, m gpu.Memory, off int64) error {
	return s.engine(m).Read(dst, m, off)
}
func (s *Several) Write(m gpu.Memory, off int64, src []byte) error {
	return s.engine(m).Write(m, off, src)
}
func (s *Several) WriteAll(m gpu.Memory, at []int64, from [][]byte) error {
	return s.engine(m).WriteAll(m, at, from)
}
func (s *Several) Stage(n int64) ([]byte, error)   { return s.first.Stage(n) }
func (s *Several) Unstage(b []byte)                { s.first.Unstage(b) }
func (s *Several) Leave(b []byte)                  { s.first.Leave(b) }
func (s *Several) Pin(b []byte, then func()) error { return s.first.Pin(b, then) }
func (s *Several) Unpin(b []byte, then func())     { s.first.Unpin(b, then) }

// Stuck is why copies no longer end on one of them.
func (s *Several) Stuck() error {
	for _, e := range s.of {
		if err := e.Stuck(); err != nil {
			return err
		}
	}
	return nil
}

// Pipe implements Piper: a pipe of each engine that turns out to be needed.
func (s *Several) Pipe() (Pipe, error) { return &pipes{s: s, of: map[*Engine]Pipe{}}, nil }

type pipes struct {
	s   *Several
	of  map[*Engine]Pipe
	err error // of pipes that were closed before, until Wait
}

func (p *pipes) pipe(m gpu.Memory) (Pipe, error) {
	e := p.s.engine(m)
	if q := p.of[e]; q != nil {
		return q, nil
	}
	q, err := e.pipe(func() { p.closeBut(e) }) // others may wait with what this one waits for, for what the rest have
	if err == nil {
		p.of[e] = q
	}
	return q, err
}

// closeBut waits for the copies of all engines but one, and gives their streams back.
func (p *pipes) closeBut(but *Engine) {
	for e, q := range p.of {
		if e != but {
			p.err = errors.Join(p.err, q.Close())
			delete(p.of, e)
		}
	}
}

func (p *pipes) Write(m gpu.Memory, off int64, src []byte) error {
	q, err := p.pipe(m)
	if err != nil {
		return err
	}
	return q.Write(m, off, src)
}

func (p *pipes) Read(dst []byte, m gpu.Memory, off int64) error {
	q, err := p.pipe(m)
	if err != nil {
		return err
	}
	return q.Read(dst, m, off)
}

func (p *pipes) Wait() error {
	errs := []error{p.err}
	for _, q := range p.of {
		errs = append(errs, q.Wait())
	}
	p.err = nil
	return errors.Join(errs...)
}

func (p *pipes) Close() error {
	p.closeBut(nil)
	err := p.err
	p.err = nil
	return err
}
