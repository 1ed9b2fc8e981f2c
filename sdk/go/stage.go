package lanefs

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu"
)

// Stage moves many pieces of a file into any memory of the program and out of it, by one call: memory that the daemon does not know. The pieces
// pass through ordinary memory, which is registered with the daemon, and with a GPU's runtime if there is one:
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
	fd     int
	bytes  []byte
	memory *Memory
	ring   *Ring
	device gpu.Memory // the stage as the runtime's kernels and copies see it; nil without a runtime
	stream gpu.Stream

	mu    sync.Mutex // a batch at a time; protects all below
	parts [stageParts]stagePart
	late  time.Time // until then kernels would be late: another process's have the GPU
	lost  error     // copies were not seen to end: they may still read the stage or write to it, so nothing else uses it
}

// StageOptions are what NewStage takes. All may be left out.
type StageOptions struct {
	Size int64 // bytes of memory; 0: 64 MiB
	// Runtime has the memory of batches that are not the CPU's.
	Runtime gpu.Runtime
	// Gather is the kernel lanefs_gather of the runtime's image, which copies many pieces by one launch. Nil: each piece is a copy.
	Gather gpu.Function
	// Timeout is how long copies on the GPU may take; 0: 30 s.
	Timeout time.Duration
}

// Piece is Len bytes of a file at Off, and at MemOff of the batch's memory.
type Piece struct{ Off, MemOff, Len int64 }

const (
	stageParts   = 3
	stageEntries = 512
	stageTable   = stageEntries * 24 // what the kernel reads: kernels/gather.h
	stageRequest = 1 << 20
	stageUsual   = 64 << 20
	stageWide    = 16 // a piece lies at its memory's address modulo this, for the kernel
)

// stagePart is a part of the stage, and what is in it.
type stagePart struct {
	start int64 // in the stage
	q     []*Request
	of    []int // the piece of each request
}

// NewStage makes a stage. Close it before the session and the runtime.
func (s *Session) NewStage(o StageOptions) (g *Stage, err error) {
	if o.Size == 0 {
		o.Size = stageUsual
	}
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	const page = 4096
	each := o.Size / stageParts / page * page
	if each < page || o.Size > math.MaxInt32 {
		return nil, fmt.Errorf("a stage of %d bytes: want %d at least: %w", o.Size, stageParts*page, unix.EINVAL)
	}
	g = &Stage{o: o, s: s, fd: -1}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.Close())
			g = nil
		}
	}()
	n := stageParts * (each + stageTable)
	if g.fd, err = unix.MemfdCreate("lanefs-stage", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING); err != nil {
		return g, err
	}
	if err = unix.Ftruncate(g.fd, n); err != nil {
		return g, err
	}
	if g.bytes, err = unix.Mmap(g.fd, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return g, err
	}
	if g.memory, err = s.Register(gpu.Export{FD: g.fd, Size: n, Kind: gpu.ExportMemFD}); err != nil {
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
	if o.Runtime != nil {
		if g.device, err = o.Runtime.Register(g.bytes, gpu.RegisteredMemory); err != nil {
			return g, err
		}
		g.stream, err = o.Runtime.NewStream()
	}
	return g, err
}

// Read reads pieces of f into b. It returns how many bytes each has, fewer than asked for at the end of the file or with an error, the rest of
// the piece in b being zero then; and the first error.
func (g *Stage) Read(f *File, b []byte, pieces []Piece) ([]int64, error) {
	return g.batch(f, target{b: b}, pieces, OpRead)
}

// Write writes pieces of b to f likewise. An OpSync of a ring, or fsync, makes them durable.
func (g *Stage) Write(f *File, b []byte, pieces []Piece) ([]int64, error) {
	return g.batch(f, target{b: b}, pieces, OpWrite)
}

// ReadInto reads pieces of f into n bytes of the runtime's memory at a. The bytes are there when it returns. What the program has on its streams
// must have ended.
func (g *Stage) ReadInto(f *File, a gpu.Addr, n int64, pieces []Piece) ([]int64, error) {
	return g.batch(f, target{a: a, n: n}, pieces, OpRead)
}

// WriteFrom writes pieces of n bytes of the runtime's memory at a to f likewise.
func (g *Stage) WriteFrom(f *File, a gpu.Addr, n int64, pieces []Piece) ([]int64, error) {
	return g.batch(f, target{a: a, n: n}, pieces, OpWrite)
}

// target is the memory of a batch: b, or n bytes at a.
type target struct {
	b []byte
	a gpu.Addr
	n int64
}

// at is the address of the memory, modulo what the kernel cares for.
func (t target) at() int64 {
	if t.b != nil {
		return int64(uintptr(unsafe.Pointer(unsafe.SliceData(t.b))) % stageWide)
	}
	return int64(t.a % stageWide)
}

func (g *Stage) batch(f *File, t target, pieces []Piece, op Op) ([]int64, error) {
	size := t.n
	if t.b != nil {
		size = int64(len(t.b))
	} else if g.device == nil && t.n > 0 {
		return nil, fmt.Errorf("the stage was made without a runtime: %w", unix.EINVAL)
	}
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
	if g.lost != nil {
		return nil, fmt.Errorf("copies of an earlier batch may still be under way: %w", g.lost)
	}
	b := &batch{g: g, f: f, t: t, op: op, pieces: pieces, results: make([]int64, len(pieces))}
	for b.next < len(pieces) && b.fatal == nil {
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
	if b.fatal != nil {
		clear(b.results)
	}
	return b.results, errors.Join(b.fatal, b.failed)
}

// batch is a batch under way.
type batch struct {
	g            *Stage
	f            *File
	t            target
	op           Op
	pieces       []Piece
	results      []int64
	next         int   // the first piece that is not placed as a whole
	done         int64 // bytes of it that are
	begun, ended int   // parts
	fatal        error // ends the batch
	failed       error // of the first piece that failed
}

// place fills a part with requests. What was in it has been moved on.
func (b *batch) place(p *stagePart) {
	p.q, p.of = p.q[:0], p.of[:0]
	at := int64(0)
	for b.next < len(b.pieces) && len(p.q) < stageEntries {
		c := b.pieces[b.next]
		mem := c.MemOff + b.done
		start := at + (b.t.at()+mem-at)&(stageWide-1)
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
	if b.op == OpRead {
		b.g.ring.Start(p.q...)
		return
	}
	if b.fatal = b.move(p); b.fatal == nil {
		b.g.ring.Start(p.q...)
	} else {
		p.q, p.of = nil, nil
	}
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
			if b.failed == nil {
				b.failed = fmt.Errorf("piece %d: %w", k, err)
			}
		}
		if b.op == OpRead { // behind the end of a file there is nothing, not what was in the stage
			clear(b.g.bytes[q.MemOff+q.N : q.MemOff+q.Len])
		}
		b.results[k] += q.N
	}
	if b.op == OpRead && b.fatal == nil {
		b.fatal = b.move(p)
	}
}

// memOff is where a request's bytes are in the batch's memory.
func (b *batch) memOff(p *stagePart, i int) int64 {
	c := b.pieces[p.of[i]]
	return c.MemOff + p.q[i].Off - c.Off
}

// move copies a part's bytes to the memory, or from it, and returns when they have arrived.
func (b *batch) move(p *stagePart) error {
	if b.t.b != nil {
		for i, q := range p.q {
			mem, stage := b.t.b[b.memOff(p, i):][:q.Len], b.g.bytes[q.MemOff:][:q.Len]
			if b.op == OpRead {
				copy(mem, stage)
			} else {
				copy(stage, mem)
			}
		}
		return nil
	}
	size := int64(0)
	for _, q := range p.q {
		size += q.Len
	}
	n := int64(len(p.q))
	if b.g.o.Gather != nil && byKernel(n, size, time.Now().Before(b.g.late)) {
		return b.timed(b.gather(p), n, size)
	}
	var err error
	for i := range p.q {
		dst, src, n := b.ends(p, i)
		err = errors.Join(err, b.g.stream.Copy(dst, src, n))
	}
	return errors.Join(err, b.g.wait())
}

// wait waits for the copies that have begun.
func (g *Stage) wait() error {
	err := g.stream.Wait(g.o.Timeout)
	if err != nil {
		g.lost = err
	}
	return err
}

// timed waits for a kernel that does what n copies do, and notes if it was late. A runtime without another process's kernels has it done already.
func (b *batch) timed(err error, n, size int64) error {
	begun := time.Now()
	err = errors.Join(err, b.g.wait())
	if d := time.Since(begun); n <= wayMany && wasLate(d, size) {
		b.g.late = begun.Add(d + wayWhile)
	}
	return err
}

// ends is where a request's bytes go, and where they come from.
func (b *batch) ends(p *stagePart, i int) (dst, src gpu.Addr, n int64) {
	dst, src = b.t.a+gpu.Addr(b.memOff(p, i)), b.g.device.Addr()+gpu.Addr(p.q[i].MemOff)
	if b.op == OpWrite {
		dst, src = src, dst
	}
	return dst, src, p.q[i].Len
}

// gather copies by one launch. The kernel's table is behind the parts.
func (b *batch) gather(p *stagePart) error {
	const blocks, threads = 4, 512 // enough for PCI Express
	number := p.start / b.g.o.Size
	at := stageParts*b.g.o.Size + number*stageTable
	table := unsafe.Slice((*[3]uint64)(unsafe.Pointer(&b.g.bytes[at])), stageEntries)
	for i := range p.q {
		dst, src, n := b.ends(p, i)
		table[i] = [3]uint64{uint64(dst), uint64(src), uint64(n)}
	}
	return b.g.stream.Launch(b.g.o.Gather, gpu.Dim3{X: blocks, Y: 1, Z: 1}, gpu.Dim3{X: threads, Y: 1, Z: 1},
		uint64(b.g.device.Addr())+uint64(at), uint64(len(p.q)))
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
	if g.stream != nil {
		errs = append(errs, g.stream.Close())
	}
	if g.device != nil {
		errs = append(errs, g.device.Close())
	}
	if g.bytes != nil {
		errs = append(errs, unix.Munmap(g.bytes))
	}
	if g.fd >= 0 {
		errs = append(errs, unix.Close(g.fd))
	}
	g.ring, g.memory, g.stream, g.device, g.bytes, g.fd = nil, nil, nil, nil, nil, -1
	return errors.Join(errs...)
}
