package softctl

import (
	"io"
	"log/slog"
	"sync"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/copyengine"
)

type mover struct{}

func (mover) Read(dst []byte, m gpu.Memory, off int64) error {
	copy(dst, m.(*memory).b[off:])
	return nil
}

func (mover) Write(m gpu.Memory, off int64, src []byte) error {
	copy(m.(*memory).b[off:], src)
	return nil
}

func textLog(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

// piped is a mover whose copies happen as late as they may.
type piped struct{ mover }

func (p piped) Pipe() (copyengine.Pipe, error) { return &late{p: p}, nil }

type late struct {
	p     piped
	after []func() error
}

func (l *late) Write(m gpu.Memory, off int64, src []byte) error {
	l.after = append(l.after, func() error { return l.p.Write(m, off, src) })
	return nil
}

func (l *late) Read(dst []byte, m gpu.Memory, off int64) error {
	l.after = append(l.after, func() error { return l.p.Read(dst, m, off) })
	return nil
}

func (l *late) Wait() error {
	after := l.after
	l.after = nil
	for _, f := range after {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

func (l *late) Close() error { return l.Wait() }

// pinning is a piped mover that reads an image's own pages, and says which it has.
type pinning struct {
	piped
	err  error // of Pin
	mu   sync.Mutex
	pins map[*byte]bool // protected by mu
}

func (p *pinning) Pin(b []byte, then func()) error {
	if p.err != nil {
		then()
		return p.err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pins[&b[0]] = true
	return nil
}

// count is how many are pinned.
func (p *pinning) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pins)
}

func (p *pinning) Unpin(b []byte, then func()) {
	p.mu.Lock()
	delete(p.pins, &b[0])
	p.mu.Unlock()
	then()
}
