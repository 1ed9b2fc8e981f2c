package softctl

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/copyengine"
	"github.com/lanefs/lanefs/nvmeq/softctl/media"
)

// staging is a mover with stages, whose copies are stuck when it is told.
type staging struct {
	piped
	stuck bool
	given map[*byte]string
}

func (s *staging) Stage(n int64) ([]byte, error) {
	b := make([]byte, n)
	s.given[&b[0]] = "in use"
	return b, nil
}
func (s *staging) Unstage(b []byte) { s.given[&b[0]] = "given back" }
func (s *staging) Leave(b []byte)   { s.given[&b[0]] = "left" }

func (s *staging) copies(f func() error) error {
	if s.stuck {
		return copyengine.ErrStuck
	}
	return f()
}

func (s *staging) Read(dst []byte, m gpu.Memory, off int64) error {
	return s.copies(func() error { return s.piped.Read(dst, m, off) })
}

func (s *staging) Write(m gpu.Memory, off int64, src []byte) error {
	return s.copies(func() error { return s.piped.Write(m, off, src) })
}

func (s *staging) Pipe() (copyengine.Pipe, error) { return &stuckPipe{late{p: s.piped}, s}, nil }

type stuckPipe struct {
	late
	s *staging
}

func (p *stuckPipe) Wait() error  { return p.s.copies(p.late.Wait) }
func (p *stuckPipe) Close() error { return p.Wait() }

// TestStageLeft: a stage that a copy may use yet is used no more, and not given back, whatever the copy was for.
func TestStageLeft(t *testing.T) {
	h, _ := ready(t, Options{Mover: &piped{}})
	img := h.c.files[0]
	dev := &memory{b: make([]byte, 4<<20)}
	r := &region{mem: dev, size: uint64(len(dev.b))}
	ns := h.c.ns[0]
	for name, use := range map[string]func(v *vector) error{
		"gather":  func(v *vector) error { return v.gather() },
		"scatter": func(v *vector) error { v.grow(v.n); return v.scatter() },
		"read":    func(v *vector) error { return v.readStaged(media.Medium(img), 0) },
		"batch": func(v *vector) error {
			b := &batch{mover: v.mover.(copyengine.Piper), buf: vector{mover: v.mover}}
			q := h.c.sq[1].Load()
			cmd := command{opcode: opWrite, nsid: 1, prp1: 1}
			require.Equal(t, noCompletion, b.write(q, &cmd, ns, v, 0, v.n))
			b.cmds[0].verdict.Drop = true
			b.settle(h.c)
			require.Zero(t, len(b.buf.stage), "it has its stage yet")
			return errMover
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := &staging{given: map[*byte]string{}}
			v := &vector{mover: s}
			v.add(r, 0, 64<<10)
			v.staged = true
			s.stuck = true
			require.Error(t, use(v))
			require.Zero(t, len(v.stage), "it has its stage yet")
			require.Len(t, s.given, 1)
			for _, is := range s.given {
				require.Equal(t, "left", is)
			}
		})
	}
}
