package lanefs

import (
	"sync/atomic"

	"github.com/lanefs/lanefs/fs/share/wire"
)

// Request is one transfer of a Ring, between Len bytes of File at Off and Memory or Buffer at MemOff. N and Err are valid after Wait. Then it
// may be started again.
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
	done uint32        // atomic: 1 after N and Err are set
	wake chan struct{} // closed at the end, if Wait sleeps; protected by Ring.mu
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
		q.ring.spin(q.ended)
	}
	if !q.ended() {
		q.sleep()
	}
	return q.Err
}

// name gives a submission the handles that the request names.
func (q *Request) name(sub *wire.Submission, s *Session) (err error) {
	if q.File != nil {
		if sub.File, err = q.File.in(s); err != nil {
			return err
		}
	}
	switch {
	case q.Memory != nil:
		sub.Memory, err = q.Memory.in(s)
	case q.Buffer != nil:
		sub.Memory, err = q.Buffer.in(s)
		sub.MemOff += uint64(q.Buffer.off)
	}
	return err
}

// sleep waits until another goroutine has taken the request's completion.
func (q *Request) sleep() {
	q.ring.mu.Lock()
	if q.ended() {
		q.ring.mu.Unlock()
		return
	}
	if q.wake == nil {
		q.wake = make(chan struct{})
	}
	wake := q.wake
	q.ring.mu.Unlock()
	<-wake
}

func (q *Request) ended() bool { return atomic.LoadUint32(&q.done) != 0 }

// endLocked ends the request. The caller holds the ring's mu.
func (q *Request) endLocked(n int64, err error) {
	wake := q.wake
	q.N, q.Err, q.wake = n, err, nil
	atomic.StoreUint32(&q.done, 1) // after which the request is the caller's
	if wake != nil {
		close(wake)
	}
}
