package copyengine

import (
	"errors"
	"os"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/kernels"
)

// Pipe implements Piper: a stream, until it is closed. It waits for one that is not in use.
func (e *Engine) Pipe() (Pipe, error) { return e.pipe(func() {}) }

// pipe is Pipe. wait is called before it waits, for a stream or a turn.
func (e *Engine) pipe(wait func()) (Pipe, error) {
	c := e.tryTake()
	if c == nil {
		wait()
		var err error
		if c, err = e.take(); err != nil {
			return nil, err
		}
	}
	return &pipe{e: e, c: c, small: c.small[:0], wait: wait}, nil
}

// pipe begins large copies at once. Small ones it collects: Wait launches one kernel for them, or begins a copy for each.
type pipe struct {
	e     *Engine
	c     *stream
	small []kernels.GatherPiece
	turn  bool   // it has its turn
	wait  func() // called before it waits for that
	err   error  // of a copy that could not begin, until Wait
}

func (p *pipe) Write(m gpu.Memory, off int64, src []byte) error { return p.copy(src, m, off, true) }

func (p *pipe) Read(dst []byte, m gpu.Memory, off int64) error { return p.copy(dst, m, off, false) }

func (p *pipe) copy(b []byte, m gpu.Memory, off int64, toDevice bool) error {
	host, ok := p.e.lookup(b)
	if !ok {
		return p.c.hand.do(func() error { return p.e.moveOn(p.c, b, m, off, toDevice) })
	}
	if err := checkSpan(b, m, off); err != nil {
		return err
	}
	dst, src := host, m.Addr()+gpu.Addr(off)
	if toDevice {
		dst, src = src, dst
	}
	if len(b) >= gatherLarge || p.e.gather == nil {
		if !p.turn && len(b) >= gatherLarge {
			p.e.turns.begin(p.wait) // who has one gives it back, also where copies are stuck
			p.turn = true
		}
		p.e.large.add(1, len(b))
		return p.c.hand.do(func() error { return p.e.copy(p.c, dst, src, int64(len(b))) })
	}
	if len(p.small) == gatherMost {
		if err := p.c.hand.do(func() error { p.begin(); return nil }); err != nil {
			p.err = err
		}
	}
	p.small = append(p.small, kernels.GatherPiece{Dst: uint64(dst), Src: uint64(src), Bytes: uint64(len(b))})
	return nil
}

// begin begins what was collected. The stream's hand calls it. A launch that is refused has copied nothing: the copy engine does it.
func (p *pipe) begin() {
	small := p.small
	p.small = small[:0]
	bytes := 0
	for _, s := range small {
		bytes += int(s.Bytes)
	}
	g, c := p.e.gather, p.c
	if p.err == nil && g.choose(len(small)) {
		part := g.part(uint64(bytes))
		if !c.list.fits(count(small, part)) {
			if p.err = p.e.await(c); p.err != nil {
				return
			}
		}
		at, n := c.list.add(small, part)
		if !c.launched {
			c.ended = p.e.traffic.ended.Load()
		}
		if g.launch(c, at, n) == nil {
			c.launched = true
			p.e.begins(c, int64(bytes))
			p.e.launches.Add(1)
			p.e.small.add(len(small), bytes)
			return
		}
	}
	for _, s := range small {
		if p.err == nil {
			p.err = p.e.copy(c, gpu.Addr(s.Dst), gpu.Addr(s.Src), int64(s.Bytes))
		}
	}
	p.e.single.add(len(small), bytes)
}

func (p *pipe) Wait() error {
	err := p.c.hand.do(func() error {
		if len(p.small) > 0 {
			p.begin()
		}
		return p.e.await(p.c) // copies that did begin end first, whatever the others met
	})
	if p.err != nil && !errors.Is(err, ErrStuck) {
		err = p.err
	}
	p.err = nil
	if p.turn {
		p.e.turns.end()
		p.turn = false
	}
	return err
}

func (p *pipe) Close() error {
	if p.c == nil {
		return os.ErrClosed
	}
	err := p.Wait()
	p.c.small = p.small[:0]
	p.e.give(p.c) // not a stuck one
	p.c = nil
	return err
}
