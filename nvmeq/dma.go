package nvmeq

import (
	"errors"
	"fmt"
	"time"

	"github.com/lanefs/lanefs/gpu"
)

// dma is runtime memory that the controller reaches too. The kernels' address, the controller's and the CPU's view
// start at the same byte.
type dma struct {
	mem    gpu.Memory
	of     gpu.Runtime // whose memory it is
	c      *Controller
	mapped IOVA // what Map returned, what Unmap wants

	iova IOVA
	addr gpu.Addr
	host []byte // nil for device memory that the CPU cannot reach
	size int64

	borrowed bool // mem is another's
}

// pageSize is the granule of Transport.Map.
const pageSize = 4096

func roundUp(n, to int64) int64 { return (n + to - 1) / to * to }

// newDMA allocates size bytes whose IOVA is a multiple of align, a power of two of at least pageSize. The contents are
// undefined.
func newDMA(c *Controller, kind gpu.MemKind, size, align int64) (*dma, error) {
	t := c.t
	size = roundUp(size, pageSize)
	total := size
	if align > pageSize {
		total += align // IOVAs are only promised to be multiples of pageSize
	}
	rt := c.runtime()
	var m gpu.Memory
	err := c.quietly(func() (err error) { m, err = rt.Alloc(kind, total); return err })
	if err != nil {
		return nil, fmt.Errorf("%d bytes of %v memory: %w", total, kind, err)
	}
	if m.Kind() != kind {
		return nil, errors.Join(fmt.Errorf("%s was asked for %v memory and gave %v memory", rt.Name(), kind, m.Kind()), c.quietly(m.Close))
	}
	at, err := t.Map(m, 0, total)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("mapping %d bytes of %v memory for %s: %w", total, kind, t.Name(), err), m.Close())
	}
	off := roundUp(int64(at), align) - int64(at)
	d := &dma{mem: m, of: rt, c: c, mapped: at, iova: at + IOVA(off), addr: m.Addr() + gpu.Addr(off), size: size}
	if h := m.Host(); h != nil {
		d.host = h[off : off+size : off+size]
	}
	return d, nil
}

// Close unmaps and frees; memory of a runtime that has failed is only unmapped. The controller must not use it any more.
func (d *dma) Close() error {
	if d == nil || d.mem == nil {
		return nil
	}
	err := d.c.t.Unmap(d.mapped)
	if !d.borrowed && !d.c.hasFailed(d.of) {
		err = errors.Join(err, d.c.quietly(d.mem.Close))
	}
	d.mem = nil
	return err
}

// copyTimeout bounds the small copies by which the CPU sets up memory it cannot reach.
const copyTimeout = 5 * time.Second

// zero clears n bytes of memory at addr, by the CPU where host is its view, else by the device.
func zero(s gpu.Stream, host []byte, addr gpu.Addr, n int64) error {
	if host != nil {
		clear(host[:n])
		return nil
	}
	if err := s.Fill(addr, 0, n); err != nil {
		return err
	}
	return s.Wait(copyTimeout)
}

// Chunk is data memory, pinned and mapped for the controller until Close. blockdev's buffers are cut from chunks.
type Chunk struct {
	d      *dma
	mirror gpu.Memory // nil where the CPU addresses d
}

// AllocData gives size bytes, rounded up to 4096, of the kind that the memory mode puts data in. It is linear for the
// CPU, for kernels and for the controller.
func (c *Controller) AllocData(size int64) (*Chunk, error) {
	if size <= 0 {
		return nil, fmt.Errorf("nvmeq: data memory of %d bytes", size)
	}
	d, err := newDMA(c, c.placement().Data, size, max(pageSize, c.mps))
	if err != nil {
		return nil, err
	}
	m := &Chunk{d: d}
	if d.host == nil {
		c.mirrored.Store(true)
		err := c.quietly(func() (err error) { m.mirror, err = c.runtime().Alloc(gpu.HostMapped, d.size); return err })
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%d bytes of host memory as a mirror: %w", d.size, err), d.Close())
		}
	}
	return m, nil
}

// Borrow makes memory that is another's reachable for the controller: all whole pages of it. Closing the chunk ends that
// and leaves the memory open.
func (c *Controller) Borrow(m gpu.Memory) (*Chunk, error) {
	n := m.Size() / pageSize * pageSize
	at, err := c.t.Map(m, 0, n)
	if err != nil {
		return nil, fmt.Errorf("mapping %d bytes of %v memory for %s: %w", n, m.Kind(), c.t.Name(), err)
	}
	return &Chunk{d: &dma{mem: m, c: c, mapped: at, iova: at, addr: m.Addr(), host: m.Host(), size: n, borrowed: true}}, nil
}

// Memory is the runtime's allocation; the chunk owns it, unless it is borrowed.
func (c *Chunk) Memory() gpu.Memory { return c.d.mem }

// Bytes is the CPU's view: the memory itself, or its mirror.
func (c *Chunk) Bytes() []byte {
	if c.mirror != nil {
		return c.mirror.Host()
	}
	return c.d.host
}

// IOVA is the controller's address of the first byte, Addr the kernels'.
func (c *Chunk) IOVA() IOVA     { return c.d.iova }
func (c *Chunk) Addr() gpu.Addr { return c.d.addr }

// Len is the size in bytes.
func (c *Chunk) Len() int64 { return c.d.size }

// Close gives the memory back. No command may use it any more.
func (c *Chunk) Close() error {
	err := c.d.Close()
	if c.mirror != nil && !c.d.c.hasFailed(c.d.of) {
		err = errors.Join(err, c.d.c.quietly(c.mirror.Close))
	}
	return err
}
