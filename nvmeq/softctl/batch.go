package softctl

import (
	"errors"
	"sync"
	"unsafe"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/copyengine"
	"github.com/lanefs/lanefs/nvmeq/softctl/media"
)

// batch is the reads and writes of one sweep whose data is in memory that the CPU cannot address. Their copies are begun together, and
// waited for once:
//
//  1. read, write  a read: the image's pinned pages, or a part of the stage that the image is read into, are given to the pipe.
//     a write: its memory is, to be copied to a part of the stage
//  2. settle       wait for all copies; write to the image what writes have brought; complete the commands
//
// A command of which a copy failed is carried out once more, by itself: so each has its own status.
//
// While a batch has commands of a queue its owner holds that queue's lock. So nobody unmaps memory, or deletes the queue, under a copy.
// Nothing that waits for a chunk of the image (pages.without) is done while a batch has commands: it may hold that chunk.
type batch struct {
	mover  copyengine.Piper
	pipe   copyengine.Pipe // nil: none is open
	cmds   []deferred
	held   []*media.Chunk // of the image's pages, that copies read
	buf    vector         // its stage, and its runs of host memory
	used   int64          // bytes of the stage
	bytes  int64          // of reads
	looked media.Medium   // whose length was looked at since the last settle
	parts  [][]byte       // where the bytes of the read that is being added are
	run    run            // a large copy that was not begun: what follows it may be the next command's
	locks  []*subQueue    // of a thread's batch: locked until it is settled

	sweep *sync.Mutex // of a thread's batch: its group's
	left  bool        // the thread does something long, and another one of its group sweeps
}

// deferred is a command that settle completes.
type deferred struct {
	command
	q      *subQueue
	ns     *namespace
	off, n int64
	stage  []byte // of a write
	failed bool   // a copy did not begin
}

// run is a copy from the image's pages to memory that several commands have part in: a long one has no gaps, as those between copies of commands
// are, 2 % of the time.
type run struct {
	m     gpu.Memory
	off   int64
	b     []byte // of a chunk
	first int    // the commands, by their place in batch.cmds, up to the last
}

// runLeast is how many bytes of a command make it worth waiting for what follows.
const runLeast = 1 << 20

// batchStage is how many bytes go through the stage in one batch, batchMost how many are read by one, batchAlone are so many that a read of them is better off by itself: it
// reads one part while another is copied.
const (
	batchStage = stageLeast
	batchMost  = 64 << 20 // bytes of reads: queues' batches end at different times, and the bus has always something to do
	batchAlone = pipeStep
)

// newBatch makes one that takes nothing where no mover does several copies at once.
func newBatch(m copyengine.Mover) *batch {
	p, _ := m.(copyengine.Piper)
	return &batch{mover: p, buf: vector{mover: m}}
}

// busy says whether the batch has commands.
func (b *batch) busy() bool { return b != nil && len(b.cmds) > 0 }

// takes says whether a command's data is such as a batch is for: the CPU's part of it could not wait for the other.
func (b *batch) takes(v *vector) bool {
	if b == nil || b.mover == nil || !v.staged {
		return false
	}
	for i := range v.pieces {
		if v.pieces[i].r.host != nil {
			return false
		}
	}
	return true
}

// full is an answer of read and write: the batch has to be settled first.
// alone is another: the command has to be carried out by itself.
const (
	full  Status = 0xfffe
	alone Status = 0xfffd
)

// read begins a Read. What it returns besides full and alone is the command's status, or noCompletion: settle completes it.
func (b *batch) read(c *Controller, q *subQueue, cmd *command, ns *namespace, v *vector, off, n int64) Status {
	if b.bytes > 0 && b.bytes+n > batchMost {
		return full
	}
	held, used := len(b.held), b.used
	st := b.source(c, ns, off, n)
	if st == success && b.open() != nil {
		st = dataTransferError
	}
	if st != success {
		b.release(held)
		b.used = used
		return st
	}
	d := deferred{command: *cmd, q: q, ns: ns, off: off, n: n}
	next, into := v.pieces, int64(0) // where the next byte goes
	for _, part := range b.parts {
		for len(part) > 0 && !d.failed {
			to := next[0]
			p := part[:min(to.n-into, int64(len(part)))]
			b.copy(&d, to.r.mem, to.r.off+to.off+into, p)
			part = part[len(p):]
			if into += int64(len(p)); into == to.n {
				next, into = next[1:], 0
			}
		}
	}
	b.bytes += n
	return b.add(d)
}

// copy copies p, of the image, to memory, for a command that is to be added.
func (b *batch) copy(d *deferred, m gpu.Memory, off int64, p []byte) {
	if r := &b.run; r.m == m && r.off+int64(len(r.b)) == off && len(r.b)+len(p) <= cap(r.b) && unsafe.SliceData(r.b[len(r.b):cap(r.b)]) == unsafe.SliceData(p) {
		r.b = r.b[:len(r.b)+len(p)] // both are of one view's chunk, which is pinned as a whole
		return
	}
	b.begin(d)
	if len(p) >= runLeast {
		b.run = run{m, off, p, len(b.cmds)}
		return
	}
	d.failed = d.failed || b.pipe.Write(m, off, p) != nil
}

// begin begins the copy of the run. d is the command that is being added, nil: there is none.
func (b *batch) begin(d *deferred) {
	r := b.run
	b.run = run{}
	if r.b == nil || b.pipe.Write(r.m, r.off, r.b) == nil {
		return
	}
	for i := range b.cmds[r.first:] {
		b.cmds[r.first+i].failed = true
	}
	if d != nil {
		d.failed = true // it may have part in it
	}
}

// source fills parts with the bytes of a range of the image, where a copy engine can read them.
func (b *batch) source(c *Controller, ns *namespace, off, n int64) Status {
	clear(b.parts)
	b.parts = b.parts[:0]
	staged := int64(0)
	for end := off + n; off < end; {
		ch, part := ns.medium.View(off, end-off, b.looked != ns.medium)
		b.looked = ns.medium
		if ch != nil {
			b.held = append(b.held, ch)
		} else {
			size := end - off
			if staged += size; staged > batchAlone {
				return alone
			}
			if part = b.room(size); part == nil {
				return full
			}
			ns.medium.Missed(off, size)
			b.buf.buf.Reset()
			b.buf.buf.Add(part)
			if err := ns.medium.Read(&b.buf.buf, off); err != nil {
				return c.mediaStatus("read", ns, off, unrecoveredRead, err)
			}
		}
		b.parts = append(b.parts, part)
		off += int64(len(part))
	}
	return success
}

// copies copies a range of the image to host memory from its pinned pages, which takes the CPU a third of a system call's time, and says whether it
// did. A batch that never has copies does so too.
func (b *batch) copies(ns *namespace, to *media.Buffers, off, n int64) (did bool) {
	if b == nil {
		return false
	}
	did = copyPages(ns.medium, to, off, n, b.looked != ns.medium)
	b.looked = ns.medium
	return did
}

// copyPages copies n bytes from the image's pinned pages by the CPU, and says whether it has. look is View's.
func copyPages(m media.Medium, to *media.Buffers, off, n int64, look bool) bool {
	ch, part := m.View(off, n, look)
	if ch == nil {
		m.Missed(off, n)
		return false
	}
	did := int64(len(part)) == n && media.CopyView(to, part)
	ch.Release()
	return did
}

// write begins a Write, likewise.
func (b *batch) write(q *subQueue, cmd *command, ns *namespace, v *vector, off, n int64) Status {
	if n > batchAlone {
		return alone
	}
	stage := b.room(n)
	if stage == nil {
		return full
	}
	if b.open() != nil {
		b.used -= n
		return dataTransferError
	}
	d := deferred{command: *cmd, q: q, ns: ns, off: off, n: n, stage: stage}
	for _, from := range v.pieces {
		if d.failed = b.pipe.Read(stage[:from.n], from.r.mem, from.r.off+from.off) != nil; d.failed {
			break
		}
		stage = stage[from.n:]
	}
	return b.add(d)
}

func (b *batch) add(d deferred) Status {
	b.cmds = append(b.cmds, d)
	d.q.deferred++
	return noCompletion
}

func (b *batch) open() (err error) {
	if b.pipe == nil {
		b.pipe, err = b.mover.Pipe()
	}
	return err
}

// room is n bytes of the stage, nil if that has no more.
func (b *batch) room(n int64) []byte {
	if b.used == 0 {
		b.buf.grow(batchStage)
	}
	if b.used+n > batchStage {
		return nil
	}
	p := b.buf.stage[b.used : b.used+n : b.used+n]
	b.used += n
	return p
}

// settle completes all commands.
func (b *batch) settle(c *Controller) {
	if b == nil {
		return
	}
	b.looked = nil
	if b.pipe == nil {
		return
	}
	b.begin(nil)
	err := b.pipe.Close()
	b.pipe = nil
	if errors.Is(err, copyengine.ErrStuck) {
		b.buf.leave()
	}
	b.release(0)
	cmds := b.cmds
	b.cmds, b.used, b.bytes = b.cmds[:0], 0, 0   // nothing is added meanwhile
	for _, writes := range []bool{false, true} { // to the image, which may take longer
		for i := range cmds {
			d := &cmds[i]
			if (d.opcode == opWrite) != writes || c.now() != stateReady {
				continue
			}
			d.q.deferred--
			if st := b.status(c, d, err != nil); st != noCompletion {
				c.finish(d.q, &d.command, st, 0)
			}
		}
	}
	if c.now() != stateReady { // a command that was not completed is forgotten, as its queue is
		for i := range cmds {
			cmds[i].q.deferred = 0
		}
	}
	clear(cmds)
}

// status is what has become of a command, of which a copy failed or may have. Carried out once more it may be begun in the queue's ring: noCompletion.
func (b *batch) status(c *Controller, d *deferred, failed bool) Status {
	switch {
	case failed || d.failed:
		return c.io(d.q, &d.command, nil)
	case d.opcode == opRead:
		d.q.stats.moved(false, d.n)
		return success
	}
	b.buf.buf.Reset()
	b.buf.buf.Add(d.stage)
	return c.store(d.q, &d.command, d.ns, &b.buf.buf, d.off, d.n)
}

// release lets go of the chunks from the i-th on.
func (b *batch) release(i int) {
	for _, ch := range b.held[i:] {
		ch.Release()
	}
	clear(b.held[i:])
	b.held = b.held[:i]
}

// leave is called before something long, with no command in the batch: it is done with the lock of its queue alone, and another thread
// sweeps.
func (b *batch) leave() {
	if b == nil || b.sweep == nil || b.left {
		return
	}
	b.unlock()
	b.left = true
	b.sweep.Unlock()
}

// lock notes that the batch's owner holds a queue's lock, unlock ends that for all.
func (b *batch) lock(q *subQueue) { b.locks = append(b.locks, q) }

func (b *batch) unlock() {
	for _, q := range b.locks {
		q.mu.Unlock()
	}
	clear(b.locks)
	b.locks = b.locks[:0]
}

// close gives the stage back.
func (b *batch) close() {
	if b != nil {
		b.buf.unstage()
	}
}
