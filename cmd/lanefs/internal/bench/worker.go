package bench

import (
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/kernels/traced"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// worker sends batches to one lane, one after the other. One goroutine has it.
type worker struct {
	r     *run
	lane  int
	rng   *rand.Rand
	data  *controller.Chunk
	table gpu.Memory // of blocks, then of what is wrong in them: the kernels' arguments
	units []uint64   // what the batch moves, by the block's number in the region
	cmds  []engine.Command
	steps []engine.Steps

	pending []uint64 // blocks that recheck has taken and not read

	reads, writes Histogram
	parts         [5]Histogram
}

func newWorker(r *run, lane, number, batch int) (_ *worker, err error) {
	w := &worker{r: r, lane: lane, rng: rand.New(rand.NewPCG(r.j.Seed, uint64(number)+1)),
		units: make([]uint64, batch), cmds: make([]engine.Command, batch), steps: make([]engine.Steps, batch)}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	if w.data, err = r.c.AllocData(int64(batch) * r.j.Block); err != nil {
		return nil, err
	}
	err = r.c.Quiesced(func() (err error) {
		w.table, err = r.c.Runtime().Alloc(gpu.HostMapped, int64(batch)*(traced.BlockSize+traced.WrongSize))
		return err
	})
	if err != nil {
		return nil, err
	}
	// What a write without a pattern of its own moves is not zeroes: a drive may treat them in another way.
	if !r.j.Verify {
		for i := range w.units {
			w.units[i] = uint64(number*batch + i)
		}
		err = w.pattern(w.units)
	}
	return w, err
}

func (w *worker) close() {
	var err error
	if w.data != nil {
		err = w.data.Close()
	}
	if w.table != nil {
		err = errors.Join(err, w.r.c.Quiesced(w.table.Close))
	}
	if err != nil {
		w.r.c.Log().Warn("memory of the measurement is left", "error", err.Error())
	}
}

// reset forgets what was measured.
func (w *worker) reset() {
	w.reads, w.writes, w.parts = Histogram{}, Histogram{}, [5]Histogram{}
}

// lba is the first LBA of a block.
func (w *worker) lba(unit uint64) uint64 { return w.r.j.First + unit*w.r.shift }

// blocks tells the kernels where the batch's blocks are, in memory and on the device.
func (w *worker) blocks(units []uint64) []traced.Wrong {
	h := w.table.Host()
	b := unsafe.Slice((*traced.Block)(unsafe.Pointer(&h[0])), len(w.units))
	for i, u := range units {
		b[i] = traced.Block{At: uint64(w.data.Addr()) + uint64(int64(i)*w.r.j.Block), Bytes: uint64(w.r.j.Block), Offset: w.lba(u) * uint64(w.r.ns.BlockSize)}
	}
	return unsafe.Slice((*traced.Wrong)(unsafe.Pointer(&h[len(w.units)*traced.BlockSize])), len(w.units))
}

// pattern has a kernel write the patterns of the first blocks of the batch.
func (w *worker) pattern(units []uint64) error {
	if len(units) == 0 {
		return nil
	}
	w.blocks(units)
	return w.r.kernel.write(w.table.Addr(), len(units))
}

// compare has a kernel compare blocks of the batch, which begin with the i-th.
func (w *worker) compare(i int, units []uint64) error {
	if len(units) == 0 {
		return nil
	}
	found := w.blocks(w.units)
	at := w.table.Addr()
	out := at + gpu.Addr(len(w.units)*traced.BlockSize)
	if err := w.r.kernel.check(at+gpu.Addr(i*traced.BlockSize), len(units), out+gpu.Addr(i*traced.WrongSize)); err != nil {
		return err
	}
	for k, u := range units {
		if w.cmds[i+k].Err != nil {
			continue
		}
		w.r.wrong.add(w.lba(u), uint64(w.r.j.Block), found[i+k], w.r.j.writes() || w.r.j.Prefill)
	}
	return nil
}

// send carries out the first n commands of the batch, of which the first write and the others read. A command that fails is counted. The error is of what ends the run.
func (w *worker) send(n, writes int, steps bool) error {
	for i := range n {
		op := nvme.IORead
		if i < writes {
			op = nvme.IOWrite
		}
		w.cmds[i] = engine.Command{Op: op, NSID: w.r.j.NSID, SLBA: w.lba(w.units[i]), NLB: uint32(w.r.shift),
			Data: w.data.IOVA() + nvme.IOVA(int64(i)*w.r.j.Block), Len: uint32(w.r.j.Block)}
		if steps {
			w.cmds[i].Steps = &w.steps[i]
		}
	}
	err := w.r.e.Do(w.lane, w.cmds[:n])
	w.r.done.Add(uint64(n))
	if err == nil {
		return nil
	}
	var status *nvme.StatusError
	for i := range n {
		switch e := w.cmds[i].Err; {
		case e == nil:
		case !errors.As(e, &status):
			return e
		default:
			w.r.failedWith(e)
		}
	}
	if status == nil {
		return err
	}
	return nil
}

// failedWith counts a command that the controller refused or could not carry out.
func (r *run) failedWith(err error) {
	r.mu.Lock()
	if r.firstErr == nil {
		r.firstErr = err
	}
	r.mu.Unlock()
	if r.failed.Add(1) >= MaxErrors {
		r.ended.Store(true)
	}
}

// measure is the part of the run that counts.
func (w *worker) measure() error {
	j, total := &w.r.j, w.r.j.units(w.r.ns)
	for !w.r.ended.Load() {
		n := len(w.units)
		if j.Count > 0 {
			if at := w.r.claimed.Add(uint64(n)); at > j.Count {
				if n -= int(min(at-j.Count, uint64(n))); n == 0 {
					return nil
				}
			}
		}
		writes := 0
		for range n {
			if w.rng.IntN(100) >= j.Reads {
				writes++
			}
		}
		if j.Sequential {
			first := w.r.next.Add(uint64(n)) - uint64(n)
			for i := range n {
				w.units[i] = (first + uint64(i)) % total
			}
			w.rng.Shuffle(n, func(a, b int) { // which of a mixed batch are written
				if writes > 0 && writes < n {
					w.units[a], w.units[b] = w.units[b], w.units[a]
				}
			})
		} else {
			for i := range n {
				w.units[i] = w.rng.Uint64N(total)
			}
		}
		if j.Verify {
			if err := w.pattern(w.units[:writes]); err != nil {
				return err
			}
		}
		if err := w.send(n, writes, j.Steps); err != nil {
			return err
		}
		w.note(n, writes)
		if j.Verify {
			if err := w.compare(writes, w.units[writes:n]); err != nil {
				return err
			}
		}
	}
	return nil
}

// note counts what the lane has measured of the batch.
func (w *worker) note(n, writes int) {
	for i := range n {
		c := &w.cmds[i]
		if c.Err != nil {
			continue
		}
		if i < writes {
			w.writes.Add(c.Latency)
			if w.r.written != nil {
				w.r.written[w.units[i]/64].Or(1 << (w.units[i] % 64))
			}
		} else {
			w.reads.Add(c.Latency)
		}
		if c.Steps != nil {
			for k, d := range [...]time.Duration{c.Steps.Build, c.Steps.Post, c.Steps.Ring, c.Steps.Wait, c.Steps.Reap} {
				w.parts[k].Add(d)
			}
		}
	}
}

// fill writes the region from its beginning to its end.
func (w *worker) fill() error {
	total := w.r.j.units(w.r.ns)
	for !w.r.ended.Load() {
		n := len(w.units)
		first := w.r.next.Add(uint64(n)) - uint64(n)
		if first >= total {
			return nil
		}
		n = int(min(uint64(n), total-first))
		for i := range n {
			w.units[i] = first + uint64(i)
		}
		if err := w.pattern(w.units[:n]); err != nil {
			return err
		}
		if err := w.send(n, n, false); err != nil {
			return err
		}
	}
	return nil
}

// recheck reads what was written, and checks it.
func (w *worker) recheck() error {
	total := w.r.j.units(w.r.ns)
	for !w.r.ended.Load() {
		n := 0
		for n < len(w.units) {
			if len(w.pending) == 0 && !w.more(total) {
				break
			}
			k := copy(w.units[n:], w.pending)
			w.pending = w.pending[k:]
			n += k
		}
		if n == 0 {
			return nil
		}
		if err := w.send(n, 0, false); err != nil {
			return err
		}
		if err := w.compare(0, w.units[:n]); err != nil {
			return err
		}
	}
	return nil
}

// more takes the next blocks that were written, of 64 in a row.
func (w *worker) more(total uint64) bool {
	w.pending = w.pending[:0]
	for len(w.pending) == 0 {
		first := w.r.next.Add(64) - 64
		if first >= total {
			return false
		}
		for set := w.r.written[first/64].Load(); set != 0; set &= set - 1 {
			w.pending = append(w.pending, first+uint64(bits.TrailingZeros64(set)))
		}
	}
	return true
}

// wrongs is what checks have found.
type wrongs struct {
	checked, blocks atomic.Uint64
	unwritten       atomic.Uint64 // blocks in which an earlier run may have written nothing
	first           atomic.Pointer[string]
}

// add counts a block. ours: this run has written it. What an earlier run wrote is not known, so a block without one word of the pattern is then
// none of it.
func (w *wrongs) add(lba, bytes uint64, found traced.Wrong, ours bool) {
	w.checked.Add(1)
	switch {
	case found.Words == 0:
		return
	case !ours && 8*found.Words == bytes:
		w.unwritten.Add(1)
		return
	}
	w.blocks.Add(1)
	s := fmt.Sprintf("the block at LBA %d: %d of its %d words of 8 bytes are not what was written, the first at byte %d", lba, found.Words, bytes/8, 8*found.First)
	w.first.CompareAndSwap(nil, &s)
}

func (w *wrongs) text() string {
	if s := w.first.Load(); s != nil {
		return *s
	}
	return ""
}
