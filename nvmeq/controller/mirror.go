package controller

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lanefs/lanefs/gpu"
)

// Data in device memory that the CPU cannot address has a mirror in pinned host memory, for whoever wants its bytes on
// the CPU: a shell's read and write do, a GPU program's do not. The controller moves data to and from the device; Push and
// Pull move it between the device and its mirror.

// copies are the streams on which mirrors are copied, made when first needed.
type copies struct {
	mu   sync.Mutex
	idle []gpu.Stream // protected by mu
	made int          // protected by mu
	free sync.Cond    // a stream was given back; its lock is mu
}

// mirrorStreams is how many mirrors are copied at once.
const mirrorStreams = 4

const mirrorTimeout = 30 * time.Second

// take gives a stream of its own to a copy.
func (p *copies) take(rt gpu.Runtime) (gpu.Stream, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free.L = &p.mu
	for len(p.idle) == 0 {
		if p.made < mirrorStreams {
			s, err := rt.NewStream()
			if err == nil {
				p.made++
			}
			return s, err
		}
		p.free.Wait()
	}
	s := p.idle[len(p.idle)-1]
	p.idle = p.idle[:len(p.idle)-1]
	return s, nil
}

func (p *copies) give(s gpu.Stream) {
	p.mu.Lock()
	p.idle = append(p.idle, s)
	p.free.Signal()
	p.mu.Unlock()
}

// forget leaves the streams to a runtime that has failed.
func (p *copies) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle, p.made = nil, 0
}

func (p *copies) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, s := range p.idle {
		errs = append(errs, s.Close())
	}
	p.made, p.idle = p.made-len(p.idle), nil
	return errors.Join(errs...)
}

// Mirrored says that Bytes is a mirror, to be kept in step with Push and Pull.
func (c *Chunk) Mirrored() bool { return c.mirror != nil }

// Push copies n bytes at off from the mirror to the device; Pull copies them back. Without a mirror there is nothing to do.
func (c *Chunk) Push(off, n int64) error {
	if c.mirror == nil {
		return nil
	}
	return c.copy(c.d.Addr+gpu.Addr(off), c.mirror.Addr()+gpu.Addr(off), off, n)
}

func (c *Chunk) Pull(off, n int64) error {
	if c.mirror == nil {
		return nil
	}
	return c.copy(c.mirror.Addr()+gpu.Addr(off), c.d.Addr+gpu.Addr(off), off, n)
}

func (c *Chunk) copy(dst, src gpu.Addr, off, n int64) error {
	if off < 0 || n < 0 || off > c.d.Size || n > c.d.Size-off {
		return fmt.Errorf("nvmeq: copy of %d bytes at %d of %d bytes of data memory", n, off, c.d.Size)
	}
	ctl := c.d.c
	s, err := ctl.copies.take(ctl.Runtime())
	if err != nil {
		return err
	}
	defer ctl.copies.give(s)
	if err := s.Copy(dst, src, n); err != nil {
		return err
	}
	return s.Wait(mirrorTimeout)
}
