package media

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Recording is an image and the operations that followed.
type Recording struct {
	size  int64
	block int
	base  []span
	log   []operation
}

// span is data at an offset of the image.
type span struct {
	off  int64
	data []byte
}

const (
	opKindWrite = 1
	opKindZero  = 2 // deallocation or Write Zeroes
	opKindFlush = 3
)

// operation is one entry of the log.
type operation struct {
	kind    uint8
	durable bool // FUA, or the volatile cache was off
	off, n  int64
	data    []byte // of a write
	arrival uint64 // the log's length when the host had rung for the command
}

func (r *Recording) add(o operation) { r.log = append(r.log, o) }

// Len is the number of operations. A cut is possible at 0 to Len.
func (r *Recording) Len() int { return len(r.log) }

// Flush says whether operation i is a flush.
func (r *Recording) Flush(i int) bool { return r.log[i].kind == opKindFlush }

const recordingMagic = "LFSREC1\n"

// Save writes the recording, so that a failed cut can be looked at again.
func (r *Recording) Save(w io.Writer) error {
	b := bufio.NewWriterSize(w, 1<<20)
	words := func(v ...uint64) {
		var p [8]byte
		for _, v := range v {
			binary.LittleEndian.PutUint64(p[:], v)
			b.Write(p[:])
		}
	}
	b.WriteString(recordingMagic)
	words(uint64(r.size), uint64(r.block), uint64(len(r.base)), uint64(len(r.log)))
	for _, s := range r.base {
		words(uint64(s.off), uint64(len(s.data)))
		b.Write(s.data)
	}
	for _, o := range r.log {
		durable := uint64(0)
		if o.durable {
			durable = 1
		}
		words(uint64(o.kind), durable, uint64(o.off), uint64(o.n), o.arrival)
		b.Write(o.data)
	}
	return b.Flush() // it keeps the first error
}

var errRecording = errors.New("not a recording, or a damaged one")

// LoadRecording reads what Save wrote.
func LoadRecording(in io.Reader) (*Recording, error) {
	b := bufio.NewReaderSize(in, 1<<20)
	magic := make([]byte, len(recordingMagic))
	if _, err := io.ReadFull(b, magic); err != nil || string(magic) != recordingMagic {
		return nil, errRecording
	}
	var err error
	word := func() uint64 {
		var p [8]byte
		if err == nil {
			_, err = io.ReadFull(b, p[:])
		}
		return binary.LittleEndian.Uint64(p[:])
	}
	r := &Recording{size: int64(word()), block: int(word())}
	spans, ops := word(), word()
	if err != nil || r.size <= 0 || r.block < 512 || r.size%int64(r.block) != 0 {
		return nil, errRecording
	}
	inside := func(off, n int64) bool { return off >= 0 && n >= 0 && off <= r.size && n <= r.size-off }
	data := func(n int64) []byte {
		p := make([]byte, n)
		if err == nil {
			_, err = io.ReadFull(b, p)
		}
		return p
	}
	for i := uint64(0); i < spans && err == nil; i++ {
		off, n := int64(word()), int64(word())
		if !inside(off, n) || n > 1<<30 {
			return nil, fmt.Errorf("%w: span %d", errRecording, i)
		}
		r.base = append(r.base, span{off, data(n)})
	}
	for i := uint64(0); i < ops && err == nil; i++ {
		o := operation{kind: uint8(word()), durable: word() == 1, off: int64(word()), n: int64(word()), arrival: word()}
		if !inside(o.off, o.n) || o.kind < opKindWrite || o.kind > opKindFlush || o.off%int64(r.block) != 0 || o.n%int64(r.block) != 0 {
			return nil, fmt.Errorf("%w: operation %d", errRecording, i)
		}
		if o.kind == opKindWrite {
			o.data = data(o.n)
		}
		r.log = append(r.log, o)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errRecording, err)
	}
	return r, nil
}
