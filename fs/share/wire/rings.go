package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// Rings are two queues in memory that a client and the daemon share. The client puts in submissions and the daemon takes them; the
// daemon puts in completions, in any order, and the client takes them. Indexes count up and wrap at 2^32. Each is written by one side only
// and lies in a cache line of its own. Neither side trusts the other: an index out of range ends the ring, and an entry is copied before
// it is checked.
//
// A side that has nothing to do sets its sleep word, looks at the ring once more, and then waits for its signal. The other side signals
// only while the word is set.

// Offsets in the rings' memory. Submissions begin at ringEntries, completions behind them.
const (
	sqTail       = 0   // written by the client
	sqHead       = 64  // by the daemon
	cqTail       = 128 // by the daemon
	cqHead       = 192 // by the client
	daemonSleeps = 256 // by both: set by the sleeper, cleared by the waker
	clientSleeps = 320
	ringEntries  = 4096
)

const (
	SubmissionSize = 64
	CompletionSize = 32
	MaxEntries     = 1 << 15
)

// Op is the operation of a submission.
type Op uint32

const (
	OpRead  Op = 1 + iota // file → memory
	OpWrite               // memory → file
	OpSync                // make the file durable
)

// Submission is one transfer. Offsets and lengths need no alignment. Whole blocks at multiples of 4 in memory go by DMA, the rest is
// copied.
type Submission struct {
	Data    uint64 // chosen by the client; the completion repeats it
	Op      Op
	File    uint32 // handle of an Open
	Memory  uint32 // handle of a Register or of a Map
	_       uint32
	FileOff uint64
	MemOff  uint64
	Len     uint64
	_       [16]byte
}

// Completion is the result of a submission. Result is the number of bytes, fewer than Len only at the end of the file, or a negative
// errno.
type Completion struct {
	Data   uint64
	Result int64
	_      [16]byte
}

// Rings is one side's view of the rings.
type Rings struct {
	*Shared
	entries, completions uint32
}

// ErrRing says that the other side has broken the protocol of the rings.
var ErrRing = errors.New("the rings' indexes are impossible")

// RingsSize returns the bytes of memory for rings of so many submissions.
func RingsSize(entries uint32) int {
	return ringEntries + int(entries)*(SubmissionSize+2*CompletionSize)
}

// NewRings returns rings in the memory s. entries is a power of two up to MaxEntries.
func NewRings(s *Shared, entries uint32) (*Rings, error) {
	if bits.OnesCount32(entries) != 1 || entries > MaxEntries {
		return nil, fmt.Errorf("rings of %d entries: want a power of two up to %d", entries, MaxEntries)
	}
	if len(s.b) < RingsSize(entries) {
		return nil, fmt.Errorf("%d bytes of memory for rings of %d entries, which take %d", len(s.b), entries, RingsSize(entries))
	}
	return &Rings{s, entries, 2 * entries}, nil
}

// Completions returns the number of entries of the completion ring.
func (r *Rings) Completions() uint32 { return r.completions }

func (r *Rings) submission(i uint32) []byte {
	at := ringEntries + int(i&(r.entries-1))*SubmissionSize
	return r.b[at : at+SubmissionSize]
}

func (r *Rings) completion(i uint32) []byte {
	at := ringEntries + int(r.entries)*SubmissionSize + int(i&(r.completions-1))*CompletionSize
	return r.b[at : at+CompletionSize]
}

// Submit is called by the client. It puts in as many of s as there is room for, and returns how many.
func (r *Rings) Submit(s []Submission) (int, error) {
	tail := r.Word32(sqTail).Load()
	used := tail - r.Word32(sqHead).Load()
	if used > r.entries {
		return 0, ErrRing
	}
	n := min(len(s), int(r.entries-used))
	for i := range n {
		EncodeSubmission(r.submission(tail+uint32(i)), &s[i])
	}
	r.Word32(sqTail).Store(tail + uint32(n)) // after the entries, so that the daemon sees them with the index
	return n, nil
}

// Take is called by the daemon. It copies out up to len(s) submissions.
func (r *Rings) Take(s []Submission) (int, error) {
	head := r.Word32(sqHead).Load()
	have := r.Word32(sqTail).Load() - head
	if have > r.entries {
		return 0, ErrRing
	}
	n := min(len(s), int(have))
	for i := range n {
		var raw [SubmissionSize]byte
		copy(raw[:], r.submission(head+uint32(i)))
		DecodeSubmission(raw[:], &s[i])
	}
	if n > 0 {
		r.Word32(sqHead).Store(head + uint32(n)) // after the copies, since the client may reuse the entries
	}
	return n, nil
}

// Queued is called by the daemon. It returns how many submissions the client has put in since the one that is counted taken, and of how many of them it is certain that
// they can be carried out: there is room for their completions, also if the client takes none out. Both are 0 if the indexes are impossible.
func (r *Rings) Queued(taken uint32) (queued, certain uint32) {
	queued = r.Word32(sqTail).Load() - taken
	used := taken - r.Word32(cqHead).Load() // by completions of what was taken, also those that are not there yet
	if queued > 2*r.entries || used > r.completions {
		return 0, 0
	}
	return queued, min(queued, r.completions-used)
}

// Submitted reports whether Take would return submissions or an error.
func (r *Rings) Submitted() bool { return r.Word32(sqTail).Load() != r.Word32(sqHead).Load() }

// Room is called by the daemon. It returns how many completions there is room for.
func (r *Rings) Room() (uint32, error) {
	used := r.Word32(cqTail).Load() - r.Word32(cqHead).Load()
	if used > r.completions {
		return 0, ErrRing
	}
	return r.completions - used, nil
}

// Complete is called by the daemon, by one goroutine at a time. There must be room.
func (r *Rings) Complete(c ...Completion) {
	tail := r.Word32(cqTail).Load()
	for i := range c {
		b := r.completion(tail + uint32(i))
		binary.LittleEndian.PutUint64(b, c[i].Data)
		binary.LittleEndian.PutUint64(b[8:], uint64(c[i].Result))
	}
	r.Word32(cqTail).Swap(tail + uint32(len(c))) // after the entries, and before the client's sleep word is read. Once: the client polls this line
}

// Reap is called by the client. It takes out up to len(c) completions.
func (r *Rings) Reap(c []Completion) (int, error) {
	head := r.Word32(cqHead).Load()
	have := r.Word32(cqTail).Load() - head
	if have > r.completions {
		return 0, ErrRing
	}
	n := min(len(c), int(have))
	for i := range n {
		b := r.completion(head + uint32(i))
		c[i] = Completion{Data: binary.LittleEndian.Uint64(b), Result: int64(binary.LittleEndian.Uint64(b[8:]))}
	}
	if n > 0 { // a store would take the line from the daemon at each poll
		r.Word32(cqHead).Store(head + uint32(n))
	}
	return n, nil
}

// DaemonSleeps and ClientSleeps set or clear the sleep word of a side. After setting it the side must look at the ring once more before it
// waits. They use an exchange, because under the race detector an atomic store outside of Go's heap is a plain store, which a later load
// may overtake.
func (r *Rings) DaemonSleeps(on bool) { r.Word32(daemonSleeps).Swap(word(on)) }
func (r *Rings) ClientSleeps(on bool) { r.Word32(clientSleeps).Swap(word(on)) }

// WakeDaemon reports whether the client must signal the daemon after it has submitted or reaped. WakeClient reports whether the daemon must
// signal the client after completions.
func (r *Rings) WakeDaemon() bool { return r.Word32(daemonSleeps).Swap(0) != 0 }
func (r *Rings) WakeClient() bool {
	return r.Word32(clientSleeps).Load() != 0 && r.Word32(clientSleeps).Swap(0) != 0
}

func word(on bool) uint32 {
	if on {
		return 1
	}
	return 0
}

// EncodeSubmission encodes s to the SubmissionSize bytes of b.
func EncodeSubmission(b []byte, s *Submission) {
	le := binary.LittleEndian
	le.PutUint64(b, s.Data)
	le.PutUint32(b[8:], uint32(s.Op))
	le.PutUint32(b[12:], s.File)
	le.PutUint32(b[16:], s.Memory)
	le.PutUint32(b[20:], 0)
	le.PutUint64(b[24:], s.FileOff)
	le.PutUint64(b[32:], s.MemOff)
	le.PutUint64(b[40:], s.Len)
	clear(b[48:SubmissionSize])
}

// DecodeSubmission is the inverse of EncodeSubmission.
func DecodeSubmission(b []byte, s *Submission) {
	le := binary.LittleEndian
	*s = Submission{Data: le.Uint64(b), Op: Op(le.Uint32(b[8:])), File: le.Uint32(b[12:]), Memory: le.Uint32(b[16:]),
		FileOff: le.Uint64(b[24:]), MemOff: le.Uint64(b[32:]), Len: le.Uint64(b[40:])}
}
