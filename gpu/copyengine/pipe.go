package copyengine

import "github.com/lanefs/lanefs/gpu"

// Pipe implements Piper: a stream, until it is closed. It waits for one that is not in use.
func (e *Engine) Pipe() (Pipe, error) { return &pipe{e, <-e.idle}, nil }

type pipe struct {
	e *Engine
	c *stream
}

func (p *pipe) Write(m gpu.Memory, off int64, src []byte) error {
	at, ok := p.e.lookup(src)
	if !ok {
		return p.e.moveOn(p.c, src, m, off, true)
	}
	if err := checkSpan(src, m, off); err != nil {
		return err
	}
	return p.c.Copy(m.Addr()+gpu.Addr(off), at, int64(len(src)))
}

func (p *pipe) Wait() error { return p.c.Wait(copyTimeout) }

func (p *pipe) Close() error {
	defer func() { p.e.idle <- p.c }()
	return p.Wait()
}
