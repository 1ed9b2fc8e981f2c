package softctl

import (
	"cmp"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/lanefs/lanefs/gpu"
)

// CopyEngine is a Mover over a runtime's copies: the controller's DMA into device memory that the CPU cannot address.
// Several copies run at once, each on a stream of its own.
//
// A copy engine reads and writes pinned memory. Queues stage their data in buffers from Stage, which are pinned, unless the
// image's own pages are; bytes from elsewhere take a detour through the stream's own.
type CopyEngine struct {
	rt     gpu.Runtime
	all    []*copier
	idle   chan *copier // those that nobody uses
	mu     sync.RWMutex
	spare  [][]byte // protected by mu: given back by Unstage
	index  []stage  // protected by mu: all stages, and what was pinned, by address
	unpins sync.WaitGroup
}

type copier struct {
	stream gpu.Stream
	bounce gpu.Memory
}

// stage is pinned memory that a queue copies from and to.
type stage struct {
	host []byte
	mem  gpu.Memory
}

func (s stage) start() uintptr { return uintptr(unsafe.Pointer(&s.host[0])) }

const (
	copiers     = 12 // with a resident kernel for each of 16 lanes fewer than the 32 hardware connections of an NVIDIA device
	bounceSize  = 256 << 10
	copyTimeout = 30 * time.Second
)

// NewCopyEngine makes the streams. Whoever made it closes it, after the controller and before the runtime.
func NewCopyEngine(rt gpu.Runtime) (*CopyEngine, error) {
	e := &CopyEngine{rt: rt, idle: make(chan *copier, copiers)}
	for range copiers {
		c := &copier{}
		var err error
		if c.stream, err = rt.NewStream(); err == nil {
			e.all = append(e.all, c)
			c.bounce, err = rt.Alloc(gpu.HostMapped, bounceSize)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("copy engine of %s: %w", rt.Name(), err), e.Close())
		}
		e.idle <- c
	}
	return e, nil
}

// Read implements Mover.
func (e *CopyEngine) Read(dst []byte, m gpu.Memory, off int64) error {
	return e.move(dst, m, off, false)
}

// Write implements Mover.
func (e *CopyEngine) Write(m gpu.Memory, off int64, src []byte) error {
	return e.move(src, m, off, true)
}

// move copies between b and n bytes of m, and returns when they have arrived.
func (e *CopyEngine) move(b []byte, m gpu.Memory, off int64, toDevice bool) error {
	c := <-e.idle
	defer func() { e.idle <- c }()
	return e.moveOn(c, b, m, off, toDevice)
}

func checkSpan(b []byte, m gpu.Memory, off int64) error {
	if off < 0 || off > m.Size() || int64(len(b)) > m.Size()-off {
		return fmt.Errorf("%d bytes at offset %d of memory of %d bytes", len(b), off, m.Size())
	}
	return nil
}

func (e *CopyEngine) moveOn(c *copier, b []byte, m gpu.Memory, off int64, toDevice bool) error {
	if err := checkSpan(b, m, off); err != nil {
		return err
	}
	if at, ok := e.pinned(b); ok {
		return c.copy(at, m.Addr()+gpu.Addr(off), int64(len(b)), toDevice)
	}
	bounce := c.bounce.Host()
	for len(b) > 0 {
		n := min(len(b), len(bounce))
		if toDevice {
			if err := copyMapped(bounce, b[:n]); err != nil {
				return err
			}
		}
		if err := c.copy(c.bounce.Addr(), m.Addr()+gpu.Addr(off), int64(n), toDevice); err != nil {
			return err
		}
		if !toDevice {
			copy(b, bounce[:n])
		}
		b, off = b[n:], off+int64(n)
	}
	return nil
}

// copyMapped copies from memory that may be a file's: it has no bytes where the file was truncated, and touching them must not end the
// process (SIGBUS).
func copyMapped(dst, src []byte) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(interface{ Addr() uintptr }); !ok {
				panic(r)
			}
			err = fmt.Errorf("copying %d bytes: %v", len(src), r)
		}
	}()
	copy(dst, src)
	return nil
}

// Pipe implements Piper: a stream, until it is closed.
func (e *CopyEngine) Pipe() (Pipe, error) { return &pipe{e, <-e.idle}, nil }

type pipe struct {
	e *CopyEngine
	c *copier
}

func (p *pipe) Write(m gpu.Memory, off int64, src []byte) error {
	at, ok := p.e.pinned(src)
	if !ok {
		return p.e.moveOn(p.c, src, m, off, true)
	}
	if err := checkSpan(src, m, off); err != nil {
		return err
	}
	return p.c.stream.Copy(m.Addr()+gpu.Addr(off), at, int64(len(src)))
}

func (p *pipe) Wait() error { return p.c.stream.Wait(copyTimeout) }

func (p *pipe) Close() error {
	defer func() { p.e.idle <- p.c }()
	return p.Wait()
}

func (c *copier) copy(host, dev gpu.Addr, n int64, toDevice bool) error {
	dst, src := host, dev
	if toDevice {
		dst, src = dev, host
	}
	if err := c.stream.Copy(dst, src, n); err != nil {
		return err
	}
	return c.stream.Wait(copyTimeout)
}

// Stage gives n bytes of pinned memory.
func (e *CopyEngine) Stage(n int64) ([]byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, b := range e.spare {
		if int64(len(b)) >= n {
			e.spare[i] = e.spare[len(e.spare)-1]
			e.spare = e.spare[:len(e.spare)-1]
			return b, nil
		}
	}
	m, err := e.rt.Alloc(gpu.HostMapped, n)
	if err != nil {
		return nil, err
	}
	e.enterLocked(stage{m.Host(), m})
	return m.Host(), nil
}

// Unstage takes back what Stage gave.
func (e *CopyEngine) Unstage(b []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.spare = append(e.spare, b)
}

// pinned is the device's address of b, if a stage holds it.
func (e *CopyEngine) pinned(b []byte) (gpu.Addr, bool) {
	if len(b) == 0 {
		return 0, false
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	p := uintptr(unsafe.Pointer(&b[0]))
	i, begins := e.findLocked(p)
	if !begins {
		i--
	}
	if i < 0 {
		return 0, false
	}
	s := e.index[i]
	o := p - s.start()
	if o >= uintptr(len(s.host)) || uintptr(len(b)) > uintptr(len(s.host))-o {
		return 0, false
	}
	return s.mem.Addr() + gpu.Addr(o), true
}

// findLocked is where in the index the stage is that begins at p, or would be. The caller holds mu.
func (e *CopyEngine) findLocked(p uintptr) (int, bool) {
	return slices.BinarySearchFunc(e.index, p, func(s stage, p uintptr) int { return cmp.Compare(s.start(), p) })
}

// enterLocked puts a stage into the index. The caller holds mu.
func (e *CopyEngine) enterLocked(s stage) {
	i, _ := e.findLocked(s.start())
	e.index = slices.Insert(e.index, i, s)
}

// Pin implements Pinner: copies from b need no stage.
func (e *CopyEngine) Pin(b []byte) error {
	m, err := e.rt.Register(b, gpu.RegisteredReadOnly)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.enterLocked(stage{b, m})
	return nil
}

// Unpin implements Pinner. A driver may take its time, as one does whose device has failed: nobody waits for it.
func (e *CopyEngine) Unpin(b []byte, then func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	i, _ := e.findLocked(uintptr(unsafe.Pointer(&b[0])))
	m := e.index[i].mem
	e.index = slices.Delete(e.index, i, i+1)
	e.unpins.Go(func() {
		if err := m.Close(); err == nil { // else the device may still reach the pages
			then()
		}
	})
}

// Close gives streams and memory back.
func (e *CopyEngine) Close() error {
	e.unpins.Wait()
	var errs []error
	for _, c := range e.all {
		errs = append(errs, c.stream.Close())
		if c.bounce != nil {
			errs = append(errs, c.bounce.Close())
		}
	}
	for _, s := range e.index {
		errs = append(errs, s.mem.Close())
	}
	e.all, e.index, e.spare = nil, nil, nil
	return errors.Join(errs...)
}
