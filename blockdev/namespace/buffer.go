package namespace

import (
	"errors"
	"sync/atomic"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/internal/pool"
	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// buffers is the memory of namespaces that were opened together: each of their controllers reaches all of it.
type buffers struct {
	pool        *pool.Pool
	controllers []*controller.Controller // by Namespace.place
	users       atomic.Int32             // namespaces that are not closed
	mirrors     atomic.Bool              // some of it has a mirror (mirror.go)
}

func newBuffers(limit int64, on []On) *buffers {
	b := &buffers{}
	for _, o := range on {
		b.controllers = append(b.controllers, o.Engine.Controller())
	}
	b.users.Store(int32(len(on)))
	b.pool = pool.New(limit, func(n int64) (pool.Memory, error) { return b.alloc(n) })
	return b
}

// memory is of the pool: a mapping of the same bytes for each controller. The first owns what is mapped.
type memory struct {
	*controller.Chunk
	all []*controller.Chunk
	at  []uint64 // their addresses
	of  *buffers
}

// Addresses are the controllers', by the place of each among the namespaces that were opened together.
func (m *memory) Addresses() []uint64 { return m.at }

// add adds the next controller's mapping.
func (m *memory) add(c *controller.Chunk) {
	m.all, m.at = append(m.all, c), append(m.at, uint64(c.IOVA()))
}

// alloc has the first controller allocate, as it allocates for itself, and the others map that, too.
func (b *buffers) alloc(n int64) (pool.Memory, error) {
	m := &memory{of: b}
	err := b.quiesced(func() (err error) { m.Chunk, err = b.controllers[0].AllocData(n); return err })
	if err != nil {
		return nil, err
	}
	if m.Mirrored() {
		b.mirrors.Store(true)
	}
	m.add(m.Chunk)
	for _, c := range b.controllers[1:] {
		s, err := c.Share(m.Chunk)
		if err != nil {
			return nil, errors.Join(err, m.Close())
		}
		m.add(s)
	}
	return m, nil
}

// attach maps memory of the caller's for all controllers.
func (b *buffers) attach(g gpu.Memory) (pool.Memory, error) {
	m := &memory{of: b}
	for _, c := range b.controllers {
		s, err := c.Borrow(g)
		if err != nil {
			return nil, errors.Join(err, m.Close())
		}
		m.add(s)
	}
	m.Chunk = m.all[0]
	return m, nil
}

// quiesced runs f while no kernel of any of the controllers' lanes runs: allocating and freeing may wait for kernels. The first controller
// sees to its own.
func (b *buffers) quiesced(f func() error) error {
	for _, c := range b.controllers[1:] {
		inner := f
		f = func() error { return c.Quiesced(inner) }
	}
	return f()
}

// Close unmaps and frees. What one controller cannot let go of is not freed.
func (m *memory) Close() error {
	return m.of.quiesced(func() error {
		for i := len(m.all) - 1; i >= 0; i-- {
			if err := m.all[i].Close(); err != nil {
				return err
			}
		}
		return nil
	})
}

// Attach maps memory of the caller's, such as device memory, for the controller, and makes a buffer of it. Bytes is nil where the CPU
// cannot reach it. Release the buffer before the memory is closed.
func (d *Namespace) Attach(g gpu.Memory) (blockdev.Buffer, error) {
	m, err := d.buffers.attach(g)
	if err != nil {
		return nil, err
	}
	b, err := d.pool.Attach(m)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// iova is the I/O virtual address of a slice, whose buffer is the pool's, for this namespace's controller.
func (d *Namespace) iova(s blockdev.Slice) nvme.IOVA {
	return nvme.IOVA(s.Buf.(*pool.Buffer).Address(d.place) + uint64(s.Off))
}

// owns says whether all buffers of r are the pool's. Only those are mapped for the controller.
func (d *Namespace) owns(r *blockdev.Request) bool {
	for _, s := range r.Bufs {
		if !d.pool.Owns(s.Buf) {
			return false
		}
	}
	return true
}
