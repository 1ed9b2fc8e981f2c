package residency

import (
	"fmt"
	"sync/atomic"
	"syscall"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/fault"
)

// Mapper makes memory reachable for the controller. The NVMe namespace implements it.
type Mapper interface {
	Attach(m gpu.Memory) (blockdev.Buffer, error)
}

// Mover copies between CPU memory and device memory that the CPU cannot address.
type Mover interface {
	Read(dst []byte, m gpu.Memory, off int64) error
	Write(m gpu.Memory, off int64, src []byte) error
}

// allWriter is a Mover that copies many pieces faster together. at are the offsets of what is in from.
type allWriter interface {
	WriteAll(m gpu.Memory, at []int64, from [][]byte) error
}

// readOnlyExporter is memory that can be exported read-only.
type readOnlyExporter interface {
	ExportReadOnly(want gpu.ExportKind) (gpu.Export, error)
}

// populator is memory whose pages can be made before it is filled, all at once.
type populator interface {
	Populate(n int64)
}

// Memory is device memory. If the controller reaches it, it is a target of transfers (ext4.Target); else it is Staged.
type Memory struct {
	mem   gpu.Memory
	buf   blockdev.Buffer // nil if it is Staged
	pool  *Pool           // whose stage it needs; nil if it needs none
	host  []byte          // nil if the CPU cannot address it
	mover Mover
	// failed is that of the pool whose runtime has the memory; nil if another has.
	failed func() bool
	left   *atomic.Int64 // Pool.left
	read   atomic.Int64
	zero   atomic.Bool // it was all zero at first, so Zero has nothing to do
}

// newMemory makes a Memory of g. With device, g is of the runtime whose memory the controller may not reach.
func (p *Pool) newMemory(g gpu.Memory, device bool) (*Memory, error) {
	m := &Memory{mem: g, host: g.Host(), mover: p.c.Mover, left: &p.left}
	if device {
		m.failed = p.c.Failed
	}
	err := p.unreached
	if err == nil || !device {
		m.buf, err = p.c.Mapper.Attach(g)
	}
	if err != nil {
		if p.c.Copier == nil || !device {
			return nil, err
		}
		m.buf, m.pool = nil, p
	}
	return m, nil
}

// Read notes that n more bytes of the file were read into it: Stats shows it while a load is under way.
func (m *Memory) Read(n int) { m.read.Add(int64(n)) }

// Addressable reports whether the CPU can address it. Then a software controller copies to and from it by the CPU.
func (m *Memory) Addressable() bool { return m.host != nil }

// Size returns the size in bytes.
func (m *Memory) Size() int64 { return m.mem.Size() }

// Slice implements ext4.Target, as do Put, Get and Zero.
func (m *Memory) Slice(off, n int) blockdev.Slice { return m.buf.Slice(off, n) }

// Put copies p to off.
func (m *Memory) Put(off int, p []byte) error {
	if err := m.check(off, len(p)); err != nil || len(p) == 0 {
		return err
	}
	if m.host == nil {
		return m.mover.Write(m.mem, int64(off), p)
	}
	return m.store(func() { copy(m.host[off:], p) })
}

// store writes by the CPU. What goes into a GPU's memory by its BAR is seen by kernels once its keeper has been told.
func (m *Memory) store(f func()) error {
	if err := guarded(f); err != nil {
		return err
	}
	if k := m.mem.Reach().Keeper; k != nil {
		return k.Arrived()
	}
	return nil
}

// PutsAll implements ext4.AllPutter, as does PutAll: one launch, or one flush, is for all. Memory of the CPU's gains nothing.
func (m *Memory) PutsAll() bool {
	if m.host != nil {
		return m.mem.Reach().Keeper != nil
	}
	_, ok := m.mover.(allWriter)
	return ok
}

// PutAll puts what is in from at the offsets in at, together.
func (m *Memory) PutAll(at []int64, from [][]byte) error {
	for i, p := range from {
		if err := m.check(int(at[i]), len(p)); err != nil {
			return err
		}
	}
	if m.host != nil {
		return m.store(func() {
			for i, p := range from {
				copy(m.host[at[i]:], p)
			}
		})
	}
	return m.mover.(allWriter).WriteAll(m.mem, at, from)
}

// Get copies len(p) bytes at off to p.
func (m *Memory) Get(off int, p []byte) error {
	if err := m.check(off, len(p)); err != nil || len(p) == 0 {
		return err
	}
	if m.host == nil {
		return m.mover.Read(p, m.mem, int64(off))
	}
	return guarded(func() { copy(p, m.host[off:]) })
}

var zeroes [1 << 20]byte

// Zero clears n bytes at off.
func (m *Memory) Zero(off, n int) error {
	if err := m.check(off, n); err != nil || n == 0 || m.zero.Load() {
		return err
	}
	if m.host != nil {
		return m.store(func() { clear(m.host[off : off+n]) })
	}
	for n > 0 {
		part := min(n, len(zeroes))
		if err := m.mover.Write(m.mem, int64(off), zeroes[:part]); err != nil {
			return err
		}
		off, n = off+part, n-part
	}
	return nil
}

func (m *Memory) check(off, n int) error {
	if off < 0 || n < 0 || off > int(m.Size())-n {
		return fmt.Errorf("%d bytes at %d of device memory of %d: %w", n, off, m.Size(), syscall.EINVAL)
	}
	return nil
}

// guarded runs f, which accesses memory whose pages another process may have removed. A page fault then is EFAULT.
func guarded(f func()) error {
	if fault.Guard(f) != nil {
		return fmt.Errorf("the memory is not there any more: %w", syscall.EFAULT)
	}
	return nil
}

// export returns a descriptor of the memory, of the first kind that works. Without write it is read-only if the memory is a
// readOnlyExporter.
func (m *Memory) export(kinds []gpu.ExportKind, write bool) (e gpu.Export, err error) {
	err = fmt.Errorf("this runtime exports no memory: %w", syscall.EOPNOTSUPP)
	for _, k := range kinds {
		if ro, ok := m.mem.(readOnlyExporter); ok && !write {
			e, err = ro.ExportReadOnly(k)
		} else {
			e, err = m.mem.Export(k)
		}
		if err == nil {
			return e, nil
		}
	}
	return e, err
}

func (m *Memory) close() error {
	if m.buf != nil {
		m.buf.Release()
	}
	if m.failed != nil && m.failed() {
		m.leave()
		return nil // it ends with the process
	}
	if err := m.stuck(); err != nil {
		m.leave()
		return err // the device may use it yet
	}
	_, ended, err := await(m.failed, nil, func() (struct{}, error) { return struct{}{}, m.mem.Close() }, func(struct{}) {})
	if !ended {
		m.leave()
		return nil // likewise
	}
	return err
}

// leave counts memory that is never freed.
func (m *Memory) leave() {
	if m.left != nil {
		m.left.Add(m.mem.Size())
	}
}

// stuck is why a copy to or from the memory may go on for ever, nil if none does.
func (m *Memory) stuck() error {
	if m.host != nil {
		return nil
	}
	of := []any{m.mover}
	if m.pool != nil {
		of = append(of, m.pool.c.Copier)
	}
	for _, c := range of {
		if s, ok := c.(interface{ Stuck() error }); ok {
			if err := s.Stuck(); err != nil {
				return err
			}
		}
	}
	return nil
}
