package blockdev

import "github.com/lanefs/lanefs/nvmeq"

func (b *buffer) Bytes() []byte {
	if b.chunk.host == nil {
		return nil
	}
	return b.chunk.host[b.off : b.off+b.n : b.off+b.n]
}

func (b *buffer) Len() int { return b.n }

func (b *buffer) Slice(off, n int) Slice { return Slice{Buf: b, Off: off, N: n} }

func (b *buffer) Release() { b.pool.release(b) }

// iova is where the controller sees a slice of one of the pool's buffers.
func (p *pool) iova(s Slice) nvmeq.IOVA {
	b := s.Buf.(*buffer)
	return b.chunk.iova + nvmeq.IOVA(b.off+s.Off)
}

// owns says whether all of r's memory is the pool's: only that is mapped for the controller.
func (p *pool) owns(r *Request) bool {
	for _, s := range r.Bufs {
		if b, ok := s.Buf.(*buffer); !ok || b.pool != p {
			return false
		}
	}
	return true
}
