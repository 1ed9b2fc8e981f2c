package lanefs

import (
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/memfd"
)

// Stage moves many pieces of a file into slices and out of them, by one call: memory that the daemon does not know. The pieces
// pass through ordinary memory, which is registered with the daemon. Package device has stages for a GPU's memory.
//
//  1. The pieces are cut and placed in the next part of the stage.              place
//  2. Read: the daemon fills the part; then it is copied to where it belongs.   first, second
//     Write: the other way round.
//  3. The daemon works on the next part meanwhile.
//
// One batch at a time; others wait.
type Stage struct {
	o      StageOptions
	s      *Session
	bytes  []byte
	memory *Memory
	ring   *Ring

	mu    sync.Mutex // a batch at a time; protects all below
	parts [stageParts]stagePart
}

// StageOptions are what NewStage takes. All may be left out.
type StageOptions struct {
	Size int64 // bytes of memory; 0: 64 MiB
}

// Piece is Len bytes of a file at Off, and at MemOff of the batch's memory.
type Piece struct{ Off, MemOff, Len int64 }

const (
	stageParts   = 3
	stageEntries = 512
	stageRequest = 1 << 20
	stageUsual   = 64 << 20
	stageWide    = 16 // a piece lies at its memory's address modulo this
)

// stagePart is a part of the stage, and what is in it.
type stagePart struct {
	start int64 // in the stage
	q     []*Request
	of    []int // the piece of each request
}

// NewStage makes a stage. Close it before the session.
func (s *Session) NewStage(o StageOptions) (g *Stage, err error) {
	if o.Size == 0 {
		o.Size = stageUsual
	}
	const page = 4096
	each := o.Size / stageParts / page * page
	if each < page || o.Size > math.MaxInt32 {
		return nil, fmt.Errorf("a stage of %d bytes: want %d at least: %w", o.Size, stageParts*page, unix.EINVAL)
	}
	g = &Stage{o: o, s: s}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.Close())
			g = nil
		}
	}()
	n := stageParts * each
	fd, err := memfd.New("lanefs-stage")
	if err != nil {
		return g, err
	}
	defer unix.Close(fd)
	if err = unix.Ftruncate(fd, n); err != nil {
		return g, err
	}
	if g.bytes, err = unix.Mmap(fd, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return g, err
	}
	if g.memory, err = s.Register(gpu.Export{FD: fd, Size: n, Kind: gpu.ExportMemFD}); err != nil {
		return g, err
	}
	const entries = 2048 // a power of two, and room for all parts
	if g.ring, err = s.NewRing(entries); err != nil {
		return g, err
	}
	for i := range g.parts {
		g.parts[i].start = int64(i) * each
	}
	g.o.Size = each // of a part
	return g, err
}

// Read reads pieces of f into b. It returns how many bytes each has, fewer than asked for at the end of the file or with an error, the rest of
// the piece in b being zero then; and the first error. EFAULT: b is of memory that the program has unmapped, or may not use so; some of it may be read.
func (g *Stage) Read(f *File, b []byte, pieces []Piece) ([]int64, error) {
	return g.batch(f, b, pieces, OpRead)
}

// Write writes pieces of b to f likewise. An OpSync of a ring, or fsync, makes them durable.
func (g *Stage) Write(f *File, b []byte, pieces []Piece) ([]int64, error) {
	return g.batch(f, b, pieces, OpWrite)
}

func (g *Stage) batch(f *File, mem []byte, pieces []Piece, op Op) ([]int64, error) {
	size := int64(len(mem))
	for i, p := range pieces {
		if p.Off < 0 || p.Len < 0 || p.MemOff < 0 || p.MemOff > size-p.Len || p.Off > math.MaxInt64-p.Len {
			return nil, fmt.Errorf("piece %d, %d bytes at %d, does not fit in memory of %d bytes: %w", i, p.Len, p.MemOff, size, unix.EINVAL)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ring == nil {
		return nil, unix.EBADF
	}
	b := &batch{g: g, f: f, mem: mem, op: op, pieces: pieces, results: make([]int64, len(pieces)),
		at: int64(uintptr(unsafe.Pointer(unsafe.SliceData(mem))) % stageWide)}
	for b.next < len(pieces) {
		p := &g.parts[b.begun%stageParts]
		if b.begun-b.ended == stageParts-1 {
			b.second()
		}
		b.place(p)
		b.first(p)
		b.begun++
	}
	for b.ended < b.begun {
		b.second()
	}
	return b.results, b.failed
}

// batch is a batch under way.
type batch struct {
	g            *Stage
	f            *File
	mem          []byte
	at           int64 // its address, modulo stageWide
	op           Op
	pieces       []Piece
	results      []int64
	next         int   // the first piece that is not placed as a whole
	done         int64 // bytes of it that are
	begun, ended int   // parts
	failed       error // of the first piece that failed
	short        int   // 1 + the last piece of which a request had fewer bytes than it wanted: those behind it do not count
}

// place fills a part with requests. What was in it has been moved on.
func (b *batch) place(p *stagePart) {
	p.q, p.of = p.q[:0], p.of[:0]
	at := int64(0)
	for b.next < len(b.pieces) && len(p.q) < stageEntries {
		c := b.pieces[b.next]
		start := at + (b.at+c.MemOff+b.done-at)&(stageWide-1)
		n := min(c.Len-b.done, stageRequest, b.g.o.Size-start)
		if n <= 0 && c.Len > 0 {
			break
		}
		if n > 0 {
			p.q = append(p.q, &Request{Op: b.op, File: b.f, Memory: b.g.memory, Off: c.Off + b.done, MemOff: p.start + start, Len: n})
			p.of = append(p.of, b.next)
			at = start + n
		}
		if b.done += n; b.done == c.Len {
			b.next, b.done = b.next+1, 0
		}
	}
}

// first is the first half of a part's way: the daemon's for a read, the copies for a write.
func (b *batch) first(p *stagePart) {
	if b.op == OpWrite {
		if err := b.move(p); err != nil { // what is in the stage is not what the program has
			b.fail(err)
			b.next = len(b.pieces)
			p.q, p.of = p.q[:0], p.of[:0]
		}
	}
	b.g.ring.Start(p.q...)
}

// second is the other half, of the oldest part: of a write its end only.
func (b *batch) second() {
	p := &b.g.parts[b.ended%stageParts]
	b.ended++
	for i, q := range p.q {
		k := p.of[i]
		err := q.Wait()
		if err != nil {
			q.N = 0
			b.fail(fmt.Errorf("piece %d: %w", k, err))
		}
		if b.short == k+1 {
			q.N = 0
		}
		if q.N < q.Len {
			b.short = k + 1
		}
		if b.op == OpRead { // behind the end of a file there is nothing, not what was in the stage
			clear(b.g.bytes[q.MemOff+q.N : q.MemOff+q.Len])
		}
		b.results[k] += q.N
	}
	if b.op == OpRead {
		if err := b.move(p); err != nil {
			b.fail(err)
			b.next = len(b.pieces)
		}
	}
}

// fail notes the first error of all of the batch.
func (b *batch) fail(err error) {
	if b.failed == nil {
		b.failed = err
	}
}

// move copies a part's bytes to the memory, or from it. EFAULT: a slice is of memory that the program has unmapped, or may not use so, as a mapping of
// a file may be. Such a fault would end the process, but panics in this goroutine while SetPanicOnFault holds.
func (b *batch) move(p *stagePart) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch fault := recover().(type) {
		case nil:
		case interface {
			error
			Addr() uintptr
		}:
			err = fmt.Errorf("the memory at %#x is not there, or may not be used so: %w", fault.Addr(), unix.EFAULT)
		default:
			panic(fault)
		}
	}()
	for i, q := range p.q {
		c := b.pieces[p.of[i]]
		mem, stage := b.mem[c.MemOff+q.Off-c.Off:][:q.Len], b.g.bytes[q.MemOff:][:q.Len]
		if b.op == OpRead {
			copy(mem, stage)
		} else {
			copy(stage, mem)
		}
	}
	return nil
}

// Close ends the stage. No batch may be under way.
func (g *Stage) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	if g.ring != nil {
		errs = append(errs, g.ring.Close())
	}
	if g.memory != nil {
		errs = append(errs, g.memory.Close())
	}
	if g.bytes != nil {
		errs = append(errs, unix.Munmap(g.bytes))
	}
	g.ring, g.memory, g.bytes = nil, nil, nil
	return errors.Join(errs...)
}
