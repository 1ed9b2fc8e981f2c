package lanefs

import (
	"github.com/lanefs/lanefs/fs/share/wire"
)

// Request is one transfer of a Ring: between Len bytes of File at Off and Memory, or Buffer, at MemOff.
type Request struct {
	Op     Op // OpRead, OpWrite, OpSync
	File   *File
	Memory *Memory
	Buffer *Buffer // instead of Memory
	Off    int64
	MemOff int64
	Len    int64

	N   int64 // bytes moved; of a read, fewer at the end of the file
	Err error

	ring *Ring
	done chan struct{}
}

// Op is what a Request does.
type Op = wire.Op

const (
	OpRead  = wire.OpRead  // file → memory
	OpWrite = wire.OpWrite // memory → file
	OpSync  = wire.OpSync  // make the file durable
)

// Wait returns when the request, which was started, has ended, with its error.
func (q *Request) Wait() error {
	if !q.ended() {
		q.ring.look(q)
	}
	<-q.done
	return q.Err
}

func (q *Request) ended() bool {
	select {
	case <-q.done:
		return true
	default:
		return false
	}
}

func (q *Request) end(n int64, err error) {
	q.N, q.Err = n, err
	close(q.done)
}
