package media

import (
	"errors"
	"fmt"
	"io"
	"math/bits"
	"math/rand/v2"

	"golang.org/x/sys/unix"
)

// Replay rebuilds the medium as power cuts could have left it.
//
// A cut at p comes after operation p-1 completed and before operation p did. Let f be the last flush completed by then:
// everything before f is on the medium. Of what came after, up to p, any blocks may be there, in any order, each block
// whole: old or one of the new contents. A write with FUA is there, and nothing older at its blocks. Operations that the
// host had submitted when power went and that completed later may be there in part, FUA or not.
//
// A Replay keeps the medium at f in memory and puts the choice on top, so that going forward from cut to cut costs what
// was written between them, and WriteTo writes only what differs. It is not for concurrent use.
type Replay struct {
	rec    *Recording
	shift  int
	mem    []byte   // the medium at the last cut
	used   []uint64 // bit set of 4 KiB pages of mem that may be other than zero
	stable int      // operations that are in mem for good
	undo   []span   // what the last cut put on top

	// By block, valid where stamp is the current cut's: the last completed FUA operation, and the operation whose
	// content the block has.
	floor, winner []int32
	stamp         []uint32
	cuts          uint32
	touched       []int64
	what          string
}

const pageSize = 4096

// NewReplay prepares to cut a recording. Close it.
func NewReplay(rec *Recording) (*Replay, error) {
	if rec.size == 0 {
		return nil, errors.New("replay: nothing was recorded")
	}
	p := &Replay{rec: rec, shift: bits.TrailingZeros(uint(rec.block))}
	mem, err := unix.Mmap(-1, 0, int(rec.size+pageSize-1)&^(pageSize-1), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("replay: memory for an image of %d bytes: %w", rec.size, err)
	}
	p.mem = mem
	p.used = make([]uint64, len(mem)/pageSize/64+1)
	blocks := rec.size >> p.shift
	p.floor, p.winner, p.stamp = make([]int32, blocks), make([]int32, blocks), make([]uint32, blocks)
	p.load()
	return p, nil
}

func (p *Replay) Close() error {
	err := unix.Munmap(p.mem)
	p.mem = nil
	return err
}

// load puts the image as it was at the beginning into mem.
func (p *Replay) load() {
	for i, w := range p.used {
		for ; w != 0; w &= w - 1 {
			page := i*64 + bits.TrailingZeros64(w)
			clear(p.mem[page*pageSize : (page+1)*pageSize])
		}
		p.used[i] = 0
	}
	for _, s := range p.rec.base {
		p.put(s.off, s.data)
	}
	p.stable, p.undo = 0, nil
}

func (p *Replay) put(off int64, b []byte) {
	copy(p.mem[off:], b)
	if len(b) == 0 {
		return
	}
	for page := off / pageSize; page <= (off+int64(len(b))-1)/pageSize; page++ {
		p.used[page/64] |= 1 << (page % 64)
	}
}

func (p *Replay) apply(o *operation) {
	switch o.kind {
	case opKindWrite:
		p.put(o.off, o.data)
	case opKindZero:
		clear(p.mem[o.off : o.off+o.n])
	}
}

// content is block b of an operation that covers it, nil for zeroes.
func (p *Replay) content(o *operation, b int64) []byte {
	if o.kind == opKindZero {
		return nil
	}
	at := b<<p.shift - o.off
	return o.data[at : at+int64(p.rec.block)]
}

// Cut makes the medium as a cut at at could have left it. The seed draws which of the possible ones.
func (p *Replay) Cut(at int, seed uint64) error {
	if at < 0 || at > len(p.rec.log) {
		return fmt.Errorf("replay: cut at %d of %d operations", at, len(p.rec.log))
	}
	for i := len(p.undo) - 1; i >= 0; i-- {
		copy(p.mem[p.undo[i].off:], p.undo[i].data)
	}
	p.undo = p.undo[:0]
	flushed := at
	for flushed > 0 && p.rec.log[flushed-1].kind != opKindFlush {
		flushed--
	}
	if flushed < p.stable {
		p.load()
	}
	for ; p.stable < flushed; p.stable++ {
		p.apply(&p.rec.log[p.stable])
	}

	candidates, done := p.candidates(flushed, at)
	choice := newChoice(rand.New(rand.NewPCG(seed, uint64(at))), len(candidates), done)
	p.what = fmt.Sprintf("cut at %d of %d, seed %d: durable up to %d, %d operations open, %d of them submitted and not completed: %s",
		at, len(p.rec.log), seed, flushed, len(candidates), len(candidates)-done, choice)
	p.overlay(candidates, done, choice)
	return nil
}

// inFlightMax is how far ahead in the log Cut looks for operations that were under way.
const inFlightMax = 1024

// candidates are the operations whose fate is open: done of them completed, then those under way.
func (p *Replay) candidates(flushed, at int) (c []int, done int) {
	for i := flushed; i < at; i++ {
		c = append(c, i)
	}
	done = len(c)
	for i := at; i < len(p.rec.log) && i < at+inFlightMax; i++ {
		if o := &p.rec.log[i]; o.kind != opKindFlush && o.arrival <= uint64(at) {
			c = append(c, i)
		}
	}
	return c, done
}

// overlay applies the chosen blocks of the candidates on top of the stable medium, remembering what was there.
func (p *Replay) overlay(candidates []int, done int, choice *choice) {
	p.cuts++
	p.touched = p.touched[:0]
	visit := func(o *operation, f func(b int64)) {
		for b := o.off >> p.shift; b < (o.off+o.n)>>p.shift; b++ {
			if p.stamp[b] != p.cuts {
				p.stamp[b], p.floor[b], p.winner[b] = p.cuts, -1, -1
				p.touched = append(p.touched, b)
			}
			f(b)
		}
	}
	for k := range done {
		if i := candidates[k]; p.rec.log[i].durable {
			visit(&p.rec.log[i], func(b int64) { p.floor[b] = int32(i) })
		}
	}
	for _, k := range choice.order {
		i := candidates[k]
		o := &p.rec.log[i]
		durable := k < done && o.durable
		first := o.off >> p.shift
		visit(o, func(b int64) {
			if i >= int(p.floor[b]) && (durable || choice.keep(k, b-first, o.n>>p.shift)) {
				p.winner[b] = int32(i)
			}
		})
	}
	var buf []byte
	for _, b := range p.touched {
		if p.winner[b] < 0 {
			continue
		}
		off := b << p.shift
		at := p.mem[off : off+int64(p.rec.block)]
		if len(buf) < p.rec.block {
			buf = make([]byte, 1<<20)
		}
		old := buf[:p.rec.block]
		buf = buf[p.rec.block:]
		copy(old, at)
		p.undo = append(p.undo, span{off, old})
		if c := p.content(&p.rec.log[p.winner[b]], b); c != nil {
			p.put(off, c)
		} else {
			clear(at)
		}
	}
}

// String says what the last cut did, for the report of a failure.
func (p *Replay) String() string { return p.what }

// ReadAt reads the medium at the last cut.
func (p *Replay) ReadAt(b []byte, off int64) (int, error) {
	if off < 0 || off >= p.rec.size {
		return 0, io.EOF
	}
	n := copy(b, p.mem[off:p.rec.size])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}
