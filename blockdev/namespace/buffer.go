package namespace

import (
	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/pool"
	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// chunk is the memory of the pool's buffers: *controller.Chunk.
type chunk interface {
	pool.Memory
	IOVA() nvme.IOVA
}

// Attach makes a buffer of memory that is another's, device memory for example. Its Bytes are nil where the CPU does not
// reach it. Release it before the memory is closed.
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

// iova is where the controller sees a slice of one of the pool's buffers.
func iova(s blockdev.Slice) nvme.IOVA {
	b := s.Buf.(*pool.Buffer)
	return b.Memory().(chunk).IOVA() + nvme.IOVA(b.Offset()+s.Off)
}

// owns says whether all of r's memory is the pool's: only that is mapped for the controller.
func (d *Namespace) owns(r *blockdev.Request) bool {
	for _, s := range r.Bufs {
		if !d.pool.Of(s.Buf) {
			return false
		}
	}
	return true
}
