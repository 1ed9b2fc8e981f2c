package contents

import (
	"errors"
	"fmt"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
)

// Transfers between files and memory that the CPU may not reach. Whole blocks of the device go by DMA. The rest, the edges of an
// unaligned range and inline contents, goes through a pinned buffer:
//
//  1. under Mu, shared: split each transfer into a direct part and its edges; map both to extents and holes
//  2. one Device.Do for all extents of all transfers, in parallel over the queue pairs
//  3. edges are copied to where they belong, holes are zeroed there

// Target is memory that a transfer reads into or writes from. Offsets are bytes.
type Target interface {
	// Slice is the part of n bytes from off, as the device's buffers have it.
	Slice(off, n int) blockdev.Slice
	Put(off int, p []byte) error
	Get(off int, p []byte) error
	Zero(off, n int) error
}

// AllPutter is a Target that may take many pieces faster together than one by one: a GPU's memory, to which each copy takes the time of hundreds.
type AllPutter interface {
	Target

	// PutsAll reports whether it does. If not, PutAll is not called.
	PutsAll() bool

	// PutAll puts what is in from at the offsets in at. After an error any of them may be missing.
	PutAll(at []int64, from [][]byte) error
}

// Transfer is one range of a file and where it is in memory.
type Transfer struct {
	Off int64 // in the file
	N   int
	Mem Target
	At  int // in Mem

	// Stop is asked of what is to be written once the file's lock is held, before bytes move: an error ends the transfer. nil: nothing does.
	Stop func() error

	Done int // bytes read: fewer than N only at the end of the file, or with an error
	Err  error

	first, last int  // requests
	planned     bool // see WriteAll
	edges       []edge
	put         bool // the edges are where they belong
	holes       []span
	detour      blockdev.Buffer // where the edges pass through; nil: buffers of their own
	used        int             // of it
}

// edge is n bytes that pass through buf, from skip on.
type edge struct {
	buf  blockdev.Buffer
	skip int
	at   int // in Mem
	n    int
	own  bool // buf is the edge's alone
}

type span struct{ at, n int }

// dmaAlign is what the controller requires of a memory address (NVMe §4.1.1: dwords).
const dmaAlign = 4

// ReadInto carries out the transfers, each with an error of its own. Where there is no memory for the edges at once it
// waits for it, with no lock and no other memory held: others that have memory may be waiting for that.
func ReadInto(i *volume.Inode, ts []Transfer, how ...volume.Reading) {
	for len(ts) > 0 {
		n := readAtOnce(i, ts, how)
		if n == 0 {
			readInParts(i, &ts[0], how)
			n = 1
		}
		ts = ts[n:]
	}
}

// readInParts carries out a transfer with one buffer for all edges.
func readInParts(i *volume.Inode, t *Transfer, how []volume.Reading) {
	buf, err := i.FS.Dev.Alloc(min(max(t.N, 0), maxBounced) + 2*i.FS.BlockSize)
	if err != nil {
		t.Err = err
		return
	}
	defer buf.Release()
	for at := 0; at < t.N && t.Err == nil; {
		part := [1]Transfer{{Off: t.Off + int64(at), N: min(t.N-at, maxBounced), Mem: t.Mem, At: t.At + at, detour: buf}}
		readAtOnce(i, part[:], how)
		t.Done, t.Err = t.Done+part[0].Done, part[0].Err
		if at += part[0].N; part[0].Done < part[0].N {
			break
		}
	}
	if t.Err != nil {
		t.Done = 0
	}
}

// readAtOnce carries out as many of the transfers, the first ones, as there is memory for their edges without waiting, and returns
// how many.
func readAtOnce(i *volume.Inode, ts []Transfer, how []volume.Reading) int {
	i.Mu.RLock()
	defer i.EndRead(how...)
	p := newPlanner(i)
	defer p.done()
	for k := range ts {
		t := &ts[k]
		t.first = len(p.reqs)
		t.Err = p.plan(t)
		if t.Err != nil {
			p.reqs = p.reqs[:t.first]
		}
		if t.detour == nil && errors.Is(t.Err, blockdev.ErrNoMemory) {
			_ = t.finish() // releases its buffers
			t.Err, t.Done, ts = nil, 0, ts[:k]
			break
		}
		t.last = len(p.reqs)
	}
	p.look.done()
	if len(p.reqs) > 0 {
		_ = i.FS.Dev.Do(p.reqs...) // each request has its own
	}
	read, edges := int64(0), 0
	for k := range ts {
		t := &ts[k]
		for _, r := range p.reqs[t.first:t.last] {
			if t.Err == nil {
				t.Err = r.Err
			}
			read += int64(r.Length())
		}
		edges += len(t.edges)
	}
	if edges > 1 {
		putTogether(ts)
	}
	for k := range ts {
		t := &ts[k]
		t.Err = i.FS.Note(t.finish())
		if t.Err != nil {
			t.Done = 0
		}
	}
	i.FS.Counters.DataRead.Add(read)
	return len(ts)
}

// finish does what comes after the device's part.
func (t *Transfer) finish() error {
	for _, e := range t.edges {
		if t.Err == nil && !t.put {
			t.Err = t.Mem.Put(e.at, e.bytes())
		}
		if e.own {
			e.buf.Release()
		}
	}
	for _, h := range t.holes {
		if t.Err == nil {
			t.Err = t.Mem.Zero(h.at, h.n)
		}
	}
	t.edges, t.holes, t.put = nil, nil, false
	return t.Err
}

func (e *edge) bytes() []byte { return e.buf.Bytes()[e.skip : e.skip+e.n] }

// putTogether puts the edges of transfers that follow one another and have one target, which takes them together.
func putTogether(ts []Transfer) {
	for len(ts) > 0 {
		m, ok := ts[0].Mem.(AllPutter)
		ok = ok && m.PutsAll()
		n := 1
		for ok && n < len(ts) && ts[n].Mem == ts[0].Mem {
			n++
		}
		if ok {
			putAll(m, ts[:n])
		}
		ts = ts[n:]
	}
}

// putAll puts the edges of transfers that are to m, if there are several.
func putAll(m AllPutter, ts []Transfer) {
	var at []int64
	var from [][]byte
	for k := range ts {
		t := &ts[k]
		for i := range t.edges {
			if t.Err == nil {
				at, from = append(at, int64(t.edges[i].at)), append(from, t.edges[i].bytes())
			}
		}
	}
	if len(from) < 2 {
		return
	}
	err := m.PutAll(at, from)
	for k := range ts {
		if t := &ts[k]; t.Err == nil && len(t.edges) > 0 {
			t.Err, t.put = err, true
		}
	}
}

// WriteFrom writes n bytes of m from at to the file at off, and returns how many were written: fewer only with an error.
// Whole blocks go straight from m. stop is Transfer.Stop.
func WriteFrom(i *volume.Inode, off int64, m Target, at, n int, stop func() error) (int, error) {
	if off < 0 || n < 0 || at < 0 || off > i.FS.MaxSizeExtents()-int64(n) {
		return 0, fmt.Errorf("%d bytes at %d: %w", n, off, volume.ErrTooBig)
	}
	bs := int64(i.FS.BlockSize)
	end := off + int64(n)
	a, z := (off+bs-1)/bs*bs, end/bs*bs
	if z <= a || (int64(at)+a-off)%dmaAlign != 0 {
		return writeBounced(i, off, m, at, n, stop)
	}
	done, err := writeBounced(i, off, m, at, int(a-off), stop)
	if err != nil {
		return done, err
	}
	for a < z { // in parts, so that readers and the journal get their turn
		part := min(z-a, maxDirect)
		s := m.Slice(at+int(a-off), int(part))
		w, err := writeAt(i, &stage{off: a, end: a + part, buf: s.Buf, base: s.Off, bs: i.FS.BlockSize, stop: stop})
		done += w
		if err != nil {
			return done, err
		}
		a += part
	}
	w, err := writeBounced(i, z, m, at+int(z-off), int(end-z), stop)
	return done + w, err
}

const (
	maxDirect  = 64 << 20
	maxBounced = 1 << 20
)

// writeBounced is WriteFrom for bytes that are not whole blocks, or not where DMA can take them from.
func writeBounced(i *volume.Inode, off int64, m Target, at, n int, stop func() error) (done int, err error) {
	p := make([]byte, min(n, maxBounced))
	for done < n {
		b := p[:min(n-done, len(p))]
		if err := m.Get(at+done, b); err != nil {
			return done, err
		}
		from := off + int64(done)
		w, err := writeAt(i, &stage{off: from, end: from + int64(len(b)), p: b, bs: i.FS.BlockSize, stop: stop})
		done += w
		if err != nil {
			return done, err
		}
	}
	return done, nil
}
