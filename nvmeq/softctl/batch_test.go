package softctl

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/copyengine"
)

// waits counts the waits of a pinning mover, and fails what it is told to.
type waits struct {
	pinning
	mu2   sync.Mutex
	ended int            // protected by mu2: pipes that were closed
	most  int            // protected by mu2: copies of one pipe
	bad   map[int64]bool // protected by mu2: offsets of the device's memory that cannot be copied to or from
	none  error          // of Pipe
	// refuses says that copies to bad offsets do not begin.
	refuses bool
}

func (w *waits) Pipe() (copyengine.Pipe, error) {
	if w.none != nil {
		return nil, w.none
	}
	return &waited{late{p: w.piped}, w}, nil
}

type waited struct {
	late
	w *waits
}

func (p *waited) fails(off int64) func() error {
	return func() error {
		p.w.mu2.Lock()
		defer p.w.mu2.Unlock()
		if p.w.bad[off] {
			return errors.New("that page")
		}
		return nil
	}
}

func (p *waited) Write(m gpu.Memory, off int64, src []byte) error {
	if err := p.fails(off)(); p.w.refuses && err != nil {
		return err
	}
	p.after = append(p.after, p.fails(off))
	return p.late.Write(m, off, src)
}

func (p *waited) Read(dst []byte, m gpu.Memory, off int64) error {
	p.after = append(p.after, p.fails(off))
	return p.late.Read(dst, m, off)
}

func (p *waited) Close() error {
	p.w.mu2.Lock()
	p.w.ended++
	p.w.most = max(p.w.most, len(p.after)/2)
	p.w.mu2.Unlock()
	return p.late.Close()
}

func (w *waits) set(bad map[int64]bool) {
	w.mu2.Lock()
	defer w.mu2.Unlock()
	w.ended, w.most, w.bad = 0, 0, bad
}

func (w *waits) seen() (ended, most int) {
	w.mu2.Lock()
	defer w.mu2.Unlock()
	return w.ended, w.most
}

// all rings once for many commands, and gives their statuses by CID.
func (r *reader) all(q *pair, cmds ...raw) map[uint16]Status {
	r.t.Helper()
	for _, c := range cmds {
		r.put(q, c)
	}
	r.ring(q)
	got := map[uint16]Status{}
	until(r.t, func() bool {
		r.c.Step(q.id)
		for e, ok := r.poll(q); ok; e, ok = r.poll(q) {
			_, twice := got[e.cid()]
			require.False(r.t, twice, "completed twice")
			got[e.cid()] = e.status() &^ statusMore
		}
		return len(got) == len(cmds)
	})
	return got
}

func succeed(t *testing.T, got map[uint16]Status) {
	t.Helper()
	for cid, st := range got {
		require.Equal(t, success, st, "command %d", cid)
	}
}

// The commands that one doorbell announces are one batch, from pinned pages and from the stage, and so are writes.
func TestBatch(t *testing.T) {
	w := &waits{pinning: pinning{pins: map[*byte]bool{}}}
	r := newReader(t, w, Options{})
	q := r.queue(2, 256)
	few := func(op uint8, count, blocks int) (cmds []raw, where []int64) {
		for i := range count {
			at := rand.Int64N(int64(len(r.want))/512 - int64(blocks))
			p2 := uint64(0)
			if blocks > 8 {
				p2 = r.at + uint64(i)*8192 + 4096
			}
			cmds = append(cmds, rw(op, 1, uint64(at), uint32(blocks)).prp(r.at+uint64(i)*8192, p2))
			where = append(where, at*512)
		}
		return cmds, where
	}
	for range 3 { // the chunks are pinned meanwhile
		for _, blocks := range []int{1, 8, 16} {
			clear(r.m.b)
			w.set(nil)
			cmds, where := few(2, 100, blocks)
			succeed(t, r.all(q, cmds...))
			for i, at := range where {
				require.True(t, bytes.Equal(r.want[at:at+int64(blocks)*512], r.m.b[i*8192:][:blocks*512]), "the %d-th", i)
			}
			ended, most := w.seen()
			require.Equal(t, 1, ended)
			require.GreaterOrEqual(t, most, 100) // one may lie across two chunks
		}
		r.pass()
		r.pass()
	}
	clear(r.m.b)
	succeed(t, r.all(q, rw(2, 1, 8, 16).prp(r.at, r.at+3*4096), rw(2, 1, 0, 8).prp(r.at+4096, 0))) // one goes to two places
	require.True(t, bytes.Equal(r.want[4096:8192], r.m.b[:4096]))
	require.True(t, bytes.Equal(r.want[:4096], r.m.b[4096:8192]))
	require.True(t, bytes.Equal(make([]byte, 4096), r.m.b[8192:12288]))
	require.True(t, bytes.Equal(r.want[8192:12288], r.m.b[12288:16384]))
	random(3, r.m.b)
	w.set(nil)
	var cmds []raw
	for i := range 100 {
		cmds = append(cmds, rw(1, 1, uint64(i)*16, 8).prp(r.at+uint64(i)*8192, 0))
		copy(r.want[i*8192:], r.m.b[i*8192:][:4096])
	}
	succeed(t, r.all(q, cmds...))
	ended, _ := w.seen()
	require.Equal(t, 1, ended)
	r.read(0, readerStep)

	// More than the stage holds, mixed with what needs the chunks for itself, and what reads after it.
	w.set(nil)
	cmds, _ = few(2, 100, 8)
	cmds = append(cmds, rw(8, 1, 32, 8), cmdOf(0, 1)) // Write Zeroes, Flush
	clear(r.want[32*512 : 40*512])
	more, _ := few(2, 100, 8)
	succeed(t, r.all(q, append(cmds, more...)...))
	r.read(0, readerStep)
}

// What the stage has no room for is another batch.
func TestBatchStage(t *testing.T) {
	const bytesEach = 256 << 10
	const count = batchStage/bytesEach + 3
	w := &waits{pinning: pinning{err: errors.New("no page can be pinned")}}
	r := newReader(t, w, Options{})
	m := newMemory(t, count*bytesEach)
	m.hidden = true
	at, err := r.c.Map(m, 0, m.Size())
	require.NoError(t, err)
	q := r.queue(2, 64)
	var cmds []raw
	for i := range count {
		p1, p2 := r.transfer(uint64(at)+uint64(i)*bytesEach, bytesEach)
		cmds = append(cmds, rw(opRead, 1, uint64(i)*bytesEach/512, bytesEach/512).prp(p1, p2))
	}
	succeed(t, r.all(q, cmds...))
	require.True(t, bytes.Equal(r.want[:len(m.b)], m.b))
	ended, _ := w.seen()
	require.Equal(t, 2, ended)
}

// A copy that fails is the failure of its command alone, whichever it is.
func TestBatchFails(t *testing.T) {
	w := &waits{pinning: pinning{pins: map[*byte]bool{}}}
	r := newReader(t, w, Options{})
	q := r.queue(2, 64)
	for _, w.refuses = range []bool{true, false} { // at once, or at the end
		for _, op := range []uint8{2, 1} {
			w.set(map[int64]bool{3 * 4096: true})
			var cmds []raw
			first := q.cid + 1
			for i := range 16 {
				cmds = append(cmds, rw(op, 1, uint64(i)*8, 8).prp(r.at+uint64(i)*4096, 0))
			}
			for cid, st := range r.all(q, cmds...) {
				want := success
				if op == 2 && cid == first+3 {
					want = dataTransferError
				}
				require.Equal(t, want, st, "command %d", cid-first)
			}
		}
	}
	w.set(nil)
	w.none = errors.New("no stream")
	for _, st := range r.all(q, rw(2, 1, 0, 8).prp(r.at, 0), rw(1, 1, 0, 8).prp(r.at, 0)) {
		require.Equal(t, dataTransferError, st)
	}
}

// Long reads of which one goes on where the other ends, in the image and in memory, are one copy.
func TestBatchRuns(t *testing.T) {
	const count = 8
	w := &waits{pinning: pinning{pins: map[*byte]bool{}}}
	r := newReader(t, w, Options{})
	r.pass()
	r.pass()
	r.pins(&w.pinning, 2)
	m := newMemory(t, (count+1)*readerStep)
	m.hidden = true
	at, err := r.c.Map(m, 0, m.Size())
	require.NoError(t, err)
	q := r.queue(2, 64)
	for name, c := range map[string]struct {
		from, gap, bytes int            // the i-th command has so many bytes of the step from + i, and lies so far behind the one before
		off              int            // in the image, besides
		fails            map[int64]bool // offsets of memory
		refused          bool           // at once
		want             int            // copies of a pipe, at most
	}{
		"one":                    {bytes: readerStep, want: 1},
		"two chunks":             {from: 28, bytes: readerStep, want: 2},
		"gaps in memory":         {gap: 4096, bytes: readerStep, want: count},
		"short ones":             {bytes: readerStep / 2, want: count},
		"the first fails":        {bytes: readerStep, want: 1, fails: map[int64]bool{0: true}},
		"the first is refused":   {bytes: readerStep, want: 1, fails: map[int64]bool{0: true}, refused: true},
		"across two, refused":    {from: 28, off: readerStep / 2, bytes: readerStep, want: 2, fails: map[int64]bool{0: true}, refused: true},
		"two chunks, the second": {from: 28, bytes: readerStep, want: 2, fails: map[int64]bool{4 * readerStep: true}},
	} {
		t.Run(name, func(t *testing.T) {
			mark := r.used
			clear(m.b)
			w.set(c.fails)
			w.refuses = c.refused
			var cmds []raw
			first := q.cid + 1
			for i := range count {
				p1, p2 := r.transfer(uint64(at)+uint64(i*(readerStep+c.gap)), c.bytes)
				cmds = append(cmds, rw(opRead, 1, uint64((c.from+i)*readerStep+c.off)/512, uint32(c.bytes/512)).prp(p1, p2))
			}
			for cid, st := range r.all(q, cmds...) {
				i := int64(cid - first)
				if c.fails[i*readerStep] {
					require.Equal(t, dataTransferError, st, "command %d", i)
					continue
				}
				require.Equal(t, success, st, "command %d", i)
				got := m.b[int(i)*(readerStep+c.gap):][:c.bytes]
				require.True(t, bytes.Equal(r.want[(int64(c.from)+i)*readerStep+int64(c.off):][:c.bytes], got), "command %d", i)
			}
			_, most := w.seen()
			require.Equal(t, c.want, most)
			r.used = mark
		})
	}
}

// A batch reads so much, and the rest is another one.
func TestBatchMost(t *testing.T) {
	const size = 8 * readerStep
	w := &waits{pinning: pinning{pins: map[*byte]bool{}}}
	r := newReader(t, w, Options{MaxTransfer: Unlimited})
	r.pass()
	r.pass()
	r.pins(&w.pinning, 2)
	m := newMemory(t, size)
	m.hidden = true
	at, err := r.c.Map(m, 0, size)
	require.NoError(t, err)
	q := r.queue(2, 64)
	for _, c := range []struct{ count, batches int }{{batchMost / size, 1}, {batchMost/size + 1, 2}} {
		w.set(nil)
		var cmds []raw
		for range c.count {
			cmds = append(cmds, r.move(opRead, 0, size/512, uint64(at)))
		}
		succeed(t, r.all(q, cmds...))
		ended, _ := w.seen()
		require.Equal(t, c.batches, ended)
		require.True(t, bytes.Equal(r.want[:size], m.b))
	}
}

// A reset while threads carry out batches: nothing is completed twice, nothing waits for ever, and all works afterwards.
func TestBatchThreads(t *testing.T) {
	w := &waits{pinning: pinning{pins: map[*byte]bool{}}}
	r := newReader(t, w, Options{Threads: 6, Queues: 6})
	for round := range 20 {
		var qs []*pair
		var long []raw
		require.NoError(t, r.c.Reset())
		r.used = 0
		r.admin = nil
		r.enable()
		for id := range uint16(6) {
			qs = append(qs, r.queue(id+1, 64))
			_, host := r.alloc(2 * longCopy)
			p1, p2 := r.transfer(host, 2*longCopy)
			long = append(long, rw(2, 1, uint64(id)*800, 2*longCopy/512).prp(p1, p2))
		}
		for i, q := range qs {
			for k := range 40 {
				op := uint8(2)
				switch {
				case k%4 == 3:
					op = 8
				case k%8 == 1: // long, by the CPU: another thread sweeps meanwhile
					r.put(q, long[i])
					continue
				}
				r.put(q, rw(op, 1, uint64(40000+i*400+k*8), 8).prp(r.at+uint64(i*40+k)*4096, 0))
			}
			r.ring(q)
			r.c.Step(q.id)
		}
		if round%2 == 0 {
			for _, q := range qs {
				got := 0
				until(t, func() bool {
					r.c.Step(q.id)
					for e, ok := r.poll(q); ok; e, ok = r.poll(q) {
						require.Equal(t, success, e.status())
						got++
					}
					return got == 40
				})
			}
		}
	}
	require.NoError(t, r.c.Reset()) // nothing touches the memory from here on
}
