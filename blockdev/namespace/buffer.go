package namespace

import (
	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/internal/pool"
	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// chunk is memory of the pool's buffers that is mapped for the controller: *controller.Chunk.
type chunk interface {
	pool.Memory
	IOVA() nvme.IOVA
}

// Attach maps memory of the caller's, such as device memory, for the controller, and makes a buffer of it. Bytes is nil where the CPU
// cannot reach it. Release the buffer before the memory is closed.
func (d *Namespace) Attach(m gpu.Memory) (blockdev.Buffer, error) {
	c, err := d.borrow(m)
	if err != nil {
		return nil, err
	}
	b, err := d.pool.Attach(c)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// iova is the I/O virtual address of a slice, whose buffer is the pool's.
func iova(s blockdev.Slice) nvme.IOVA {
	b := s.Buf.(*pool.Buffer)
	return b.Memory().(chunk).IOVA() + nvme.IOVA(b.Offset()+s.Off)
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
