package controller

import (
	"errors"
	"fmt"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/calls"
	"github.com/lanefs/lanefs/nvmeq/internal/align"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// DMA is runtime memory that is mapped for the controller. Addr, IOVA and Host are the same first byte.
type DMA struct {
	Mem    gpu.Memory
	of     gpu.Runtime // that allocated it
	c      *Controller
	mapped nvme.IOVA // what Map returned, for Unmap

	IOVA nvme.IOVA
	Addr gpu.Addr
	Host []byte // nil for device memory that the CPU cannot address
	Size int64  // bytes

	borrowed bool // Mem is not ours to close
}

// PageSize is the granule of Transport.Map.
const PageSize = 4096

// AllocDMA allocates size bytes whose IOVA is a multiple of alignment, a power of two of at least PageSize. The contents are
// undefined.
func (c *Controller) AllocDMA(kind gpu.MemKind, size, alignment int64) (*DMA, error) {
	return c.AllocDMAOn(c.Runtime(), kind, size, alignment)
}

// AllocDMAOn is AllocDMA of memory of rt, which may be another than the controller's runtime.
func (c *Controller) AllocDMAOn(rt gpu.Runtime, kind gpu.MemKind, size, alignment int64) (*DMA, error) {
	t := c.t
	size = align.Up(size, PageSize)
	total := size
	if alignment > PageSize {
		total += alignment // Map returns multiples of PageSize
	}
	var m gpu.Memory
	err := c.memoryCall(rt, total, func() (err error) { m, err = rt.Alloc(kind, total); return err })
	if err != nil {
		return nil, fmt.Errorf("%d bytes of %v memory: %w", total, kind, err)
	}
	if m.Kind() != kind {
		return nil, errors.Join(fmt.Errorf("%s was asked for %v memory and gave %v memory", rt.Name(), kind, m.Kind()), c.freeMemory(rt, m))
	}
	at, err := t.Map(m, 0, total)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("mapping %d bytes of %v memory for %s: %w", total, kind, t.Name(), err), c.freeMemory(rt, m))
	}
	off := align.Up(int64(at), alignment) - int64(at)
	d := &DMA{Mem: m, of: rt, c: c, mapped: at, IOVA: at + nvme.IOVA(off), Addr: m.Addr() + gpu.Addr(off), Size: size}
	if h := m.Host(); h != nil {
		d.Host = h[off : off+size : off+size]
	}
	c.keep(d)
	return d, nil
}

// Close unmaps and frees; memory of a runtime that has failed, or that the transport cannot let go of, is only unmapped. The controller must
// not use it any more. What hangs since a runtime has failed is left behind, see unmap.
func (d *DMA) Close() error {
	if d == nil || d.Mem == nil {
		return nil
	}
	d.c.forget(d)
	if d.borrowed {
		d.c.unlend(d)
	}
	ended, err := d.c.unmap(d.mapped)
	switch {
	case d.borrowed:
	case ended && err == nil && !d.c.hasFailed(d.of):
		err = d.c.freeMemory(d.of, d.Mem)
	default:
		d.c.LeaveMemory(d.Mem.Size())
	}
	d.Mem = nil
	return err
}

// Chunk is data memory, pinned and mapped for the controller until Close. Package blockdev cuts its buffers from chunks.
type Chunk struct {
	d      *DMA
	mirror gpu.Memory // nil where the CPU addresses d
}

// AllocData allocates size bytes, rounded up to 4096, of kind Placement.Data. They are contiguous for the CPU, for kernels and for
// the controller.
func (c *Controller) AllocData(size int64) (*Chunk, error) {
	if size <= 0 {
		return nil, fmt.Errorf("nvme: data memory of %d bytes", size)
	}
	d, err := c.AllocDMA(c.Placement().Data, size, max(PageSize, c.mps))
	if errors.Is(err, calls.ErrHangs) { // the spare runtime has memory, and it is for who serves files on the CPU
		c.LeaveRuntime(err)
		c.AwaitReset() // which others may have begun
		if c.Failover() != nil {
			d, err = c.AllocDMA(c.Placement().Data, size, max(PageSize, c.mps))
		}
	}
	if err != nil {
		return nil, err
	}
	m := &Chunk{d: d}
	if !d.Mem.Reach().Owner.Outlives() {
		c.dataOnGPU.Store(true)
	}
	if d.Host == nil {
		var mirror gpu.Memory
		err := c.memoryCall(d.of, d.Size, func() (err error) { mirror, err = d.of.Alloc(gpu.HostMapped, d.Size); return err })
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%d bytes of host memory as a mirror: %w", d.Size, err), d.Close())
		}
		m.mirror = mirror
	}
	return m, nil
}

// Borrow maps the caller's memory for the controller: all whole pages of it. Close of the chunk unmaps it, and leaves it open.
func (c *Controller) Borrow(m gpu.Memory) (*Chunk, error) {
	n := m.Size() / PageSize * PageSize
	at, err := c.t.Map(m, 0, n)
	if err != nil {
		return nil, fmt.Errorf("mapping %d bytes of %v memory for %s: %w", n, m.Kind(), c.t.Name(), err)
	}
	if t, ok := c.t.(Borrower); ok {
		t.Borrowed(at)
	}
	d := &DMA{Mem: m, c: c, mapped: at, IOVA: at, Addr: m.Addr(), Host: m.Host(), Size: n, borrowed: true}
	c.keep(d)
	c.lend(d)
	return &Chunk{d: d}, nil
}

// Share maps a chunk of another controller's for this one, too: a drive beside it reads and writes the same buffers. Close of what it gives
// unmaps that, and comes before the chunk's own.
func (c *Controller) Share(of *Chunk) (*Chunk, error) {
	o := of.d
	off := int64(o.Addr - o.Mem.Addr())
	at, err := c.t.Map(o.Mem, off, o.Size)
	if err == nil && int64(at)%max(PageSize, c.mps) != 0 {
		err = errors.Join(fmt.Errorf("address %#x is within a page of %d bytes", at, c.mps), c.t.Unmap(at))
	}
	if err != nil {
		return nil, fmt.Errorf("mapping %d bytes of %v memory for %s, too: %w", o.Size, o.Mem.Kind(), c.t.Name(), err)
	}
	d := &DMA{Mem: o.Mem, of: o.of, c: c, mapped: at, IOVA: at, Addr: o.Addr, Host: o.Host, Size: o.Size, borrowed: true}
	c.keep(d)
	if !d.Mem.Reach().Owner.Outlives() {
		c.dataOnGPU.Store(true)
	}
	return &Chunk{d: d}, nil
}

// Memory is the memory of the chunk, which the chunk owns unless it is borrowed.
func (c *Chunk) Memory() gpu.Memory { return c.d.Mem }

// Bytes is the CPU's view: the memory itself, or its mirror.
func (c *Chunk) Bytes() []byte {
	if c.mirror != nil {
		return c.mirror.Host()
	}
	return c.d.Host
}

// IOVA is the controller's address of the first byte, Addr the kernels'.
func (c *Chunk) IOVA() nvme.IOVA { return c.d.IOVA }
func (c *Chunk) Addr() gpu.Addr  { return c.d.Addr }

// Len is the size in bytes.
func (c *Chunk) Len() int64 { return c.d.Size }

// Close unmaps and frees the memory. No command may use it any more.
func (c *Chunk) Close() error {
	err := c.d.Close()
	switch of := c.d.of; {
	case c.mirror == nil:
	case c.d.c.hasFailed(of):
		c.d.c.LeaveMemory(c.mirror.Size())
	default:
		err = errors.Join(err, c.d.c.freeMemory(of, c.mirror))
	}
	return err
}
