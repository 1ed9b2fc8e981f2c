package namespace

import (
	"errors"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/nvmeq"
)

func (b *buffer) Bytes() []byte {
	if b.chunk.host == nil {
		return nil
	}
	return b.chunk.host[b.off : b.off+b.n : b.off+b.n]
}

func (b *buffer) Len() int { return b.n }

func (b *buffer) Slice(off, n int) blockdev.Slice { return blockdev.Slice{Buf: b, Off: off, N: n} }

func (b *buffer) Release() {
	if b.chunk.attached {
		_ = b.chunk.mem.Close() // only a lost controller refuses, and that reaches nothing any more
	}
	b.pool.release(b)
}

// Attach makes a buffer of memory that is another's, device memory for example. Its Bytes are nil where the CPU does not
// reach it. Release it before the memory is closed.
func (d *Namespace) Attach(m gpu.Memory) (blockdev.Buffer, error) {
	c, err := d.borrow(m)
	if err != nil {
		return nil, err
	}
	d.pool.mu.Lock()
	defer d.pool.mu.Unlock()
	if d.pool.closed {
		return nil, errors.Join(blockdev.ErrClosed, c.Close())
	}
	d.pool.live++
	return &buffer{pool: d.pool, chunk: &chunk{mem: c, host: c.Bytes(), iova: c.IOVA(), attached: true}, inUse: true, n: int(c.Len())}, nil
}

// iova is where the controller sees a slice of one of the pool's buffers.
func (p *pool) iova(s blockdev.Slice) nvmeq.IOVA {
	b := s.Buf.(*buffer)
	return b.chunk.iova + nvmeq.IOVA(b.off+s.Off)
}

// owns says whether all of r's memory is the pool's: only that is mapped for the controller.
func (p *pool) owns(r *blockdev.Request) bool {
	for _, s := range r.Bufs {
		if b, ok := s.Buf.(*buffer); !ok || b.pool != p {
			return false
		}
	}
	return true
}
