package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// Rings are two queues in memory that a client and the daemon share: of submissions, which the client makes and the daemon
// takes, and of completions, the other way round, in any order. Indexes count up and wrap at 2^32; each is written by one
// side only and lies in a cache line of its own. Neither side believes the other's: an index that is out of range ends the
// ring, and an entry is copied out before it is looked at.
//
// A side that has nothing to do says so in its sleep word and looks once more before it waits for its signal; the other
// side signals that only while the word is set.

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

// Op is what a submission asks for.
type Op uint32

const (
	OpRead  Op = 1 + iota // file → memory
	OpWrite               // memory → file
	OpSync                // make the file durable
)

// Submission is one request. Any alignment will do; whole blocks at multiples of 4 in memory go without a detour.
type Submission struct {
	Data    uint64 // the client's own: comes back with the completion
	Op      Op
	File    uint32 // handle of an Open
	Memory  uint32 // handle of a Register or of a Map
	_       uint32
	FileOff uint64
	MemOff  uint64
	Len     uint64
	_       [16]byte
}

// Completion is its answer. Result is the number of bytes, fewer than asked for only at the end of the file, or an errno,
// negative.
type Completion struct {
	Data   uint64
	Result int64
	_      [16]byte
}

// Rings is one side's view.
type Rings struct {
	*Shared
	entries, completions uint32
}

// ErrRing says that the other side broke the rules of the rings.
var ErrRing = errors.New("the rings' indexes are impossible")

// RingsSize is the memory that rings for so many submissions take, in bytes.
func RingsSize(entries uint32) int {
	return ringEntries + int(entries)*(SubmissionSize+2*CompletionSize)
}

// NewRings lays rings over memory.
func NewRings(s *Shared, entries uint32) (*Rings, error) {
	if bits.OnesCount32(entries) != 1 || entries > MaxEntries {
		return nil, fmt.Errorf("rings of %d entries: want a power of two up to %d", entries, MaxEntries)
	}
	if len(s.b) < RingsSize(entries) {
		return nil, fmt.Errorf("%d bytes of memory for rings of %d entries, which take %d", len(s.b), entries, RingsSize(entries))
	}
	return &Rings{s, entries, 2 * entries}, nil
}

// Completions is how many completions there is room for.
func (r *Rings) Completions() uint32 { return r.completions }

func (r *Rings) submission(i uint32) []byte {
	at := ringEntries + int(i&(r.entries-1))*SubmissionSize
	return r.b[at : at+SubmissionSize]
}

func (r *Rings) completion(i uint32) []byte {
	at := ringEntries + int(r.entries)*SubmissionSize + int(i&(r.completions-1))*CompletionSize
	return r.b[at : at+CompletionSize]
}

// Submit is the client's: it puts in as many of s as there is room for, and says how many.
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
	r.Word32(sqTail).Store(tail + uint32(n)) // after the entries: whoever sees the index sees them
	return n, nil
}

// Take is the daemon's: it copies out up to len(s) submissions.
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
	r.Word32(sqHead).Store(head + uint32(n)) // after the copies: the client may use the places again
	return n, nil
}

// Submitted says whether Take would find something, if only that the client broke the rules.
func (r *Rings) Submitted() bool { return r.Word32(sqTail).Load() != r.Word32(sqHead).Load() }

// Room is the daemon's: how many completions the client has left room for.
func (r *Rings) Room() (uint32, error) {
	used := r.Word32(cqTail).Load() - r.Word32(cqHead).Load()
	if used > r.completions {
		return 0, ErrRing
	}
	return r.completions - used, nil
}

// Complete is the daemon's, one at a time. The caller knows that there is room.
func (r *Rings) Complete(c Completion) {
	tail := r.Word32(cqTail).Load()
	b := r.completion(tail)
	binary.LittleEndian.PutUint64(b, c.Data)
	binary.LittleEndian.PutUint64(b[8:], uint64(c.Result))
	r.Word32(cqTail).Swap(tail + 1) // after the entry, and before the look at whether the client sleeps
}

// Reap is the client's: it takes out up to len(c) completions.
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
	r.Word32(cqHead).Store(head + uint32(n))
	return n, nil
}

// DaemonSleeps and ClientSleeps say that a side is about to wait; after it, look once more. They exchange, since under the race
// detector a store outside Go's heap is a plain one, which that look overtakes.
func (r *Rings) DaemonSleeps(on bool) { r.Word32(daemonSleeps).Swap(word(on)) }
func (r *Rings) ClientSleeps(on bool) { r.Word32(clientSleeps).Swap(word(on)) }

// WakeDaemon says whether the daemon is to be signalled, after something was submitted or reaped; WakeClient likewise after
// something was completed.
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

// EncodeSubmission writes s to b, of SubmissionSize bytes.
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

// DecodeSubmission reads it back.
func DecodeSubmission(b []byte, s *Submission) {
	le := binary.LittleEndian
	*s = Submission{Data: le.Uint64(b), Op: Op(le.Uint32(b[8:])), File: le.Uint32(b[12:]), Memory: le.Uint32(b[16:]),
		FileOff: le.Uint64(b[24:]), MemOff: le.Uint64(b[32:]), Len: le.Uint64(b[40:])}
}
