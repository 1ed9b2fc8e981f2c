package lanefs

import (
	"github.com/lanefs/lanefs/fs/share/wire"
)

// Request is one transfer of a Ring, between Len bytes of File at Off and Memory or Buffer at MemOff. N and Err are valid after Wait.
type Request struct {
	Op     Op // OpRead, OpWrite, OpSync
	File   *File
	Memory *Memory
	Buffer *Buffer // instead of Memory
	Off    int64
	MemOff int64
	Len    int64

	N   int64 // bytes moved; a read moves fewer at the end of the file
	Err error

	ring *Ring
	done chan struct{}
}

// Op is the operation of a Request.
type Op = wire.Op

const (
	OpRead  = wire.OpRead  // file → memory
	OpWrite = wire.OpWrite // memory → file
	OpSync  = wire.OpSync  // make the file durable
)

// Wait waits until a started request has ended, and returns its error.
func (q *Request) Wait() error {
	if !q.ended() {
		q.ring.spin(q)
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
