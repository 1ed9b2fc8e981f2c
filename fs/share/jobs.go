package share

import (
	"errors"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/residency"
	"github.com/lanefs/lanefs/fs/share/wire"
)

// job is a submission with the handles that it names.
type job struct {
	wire.Submission
	uses [2]*use
	file *fs.External
	mem  *residency.Memory
	// stage says that mem is one (memory.stage).
	stage bool
	err   error
}

// batch is submissions that one worker carries out.
type batch struct {
	jobs  []job
	bytes uint64
	apart bool // some of them write, and writes have lately been carried out one after another: workers do that better in parallel
}

// batches looks up the handles of submissions and cuts them into batches of about batchBytes.
func (r *ring) batches(subs []wire.Submission) (all []batch) {
	b := r.fresh()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range subs {
		j := job{Submission: s}
		j.err = r.resolveLocked(&j)
		r.looked++
		if len(b.jobs) > 0 && b.bytes+s.Len > batchBytes {
			all, b = append(all, b), r.fresh()
		}
		b.jobs = append(b.jobs, j)
		b.bytes += min(s.Len, batchBytes)
		b.apart = b.apart || s.Op == wire.OpWrite && r.apart.Load()
	}
	r.ended.Broadcast() // a release may wait for these
	return append(all, b)
}

// fresh is an empty batch, and recycle keeps the memory of one.
func (r *ring) fresh() batch {
	select {
	case jobs := <-r.spare:
		return batch{jobs: jobs}
	default:
		return batch{jobs: make([]job, 0, batchEntries)}
	}
}

func (r *ring) recycle(b batch) {
	clear(b.jobs)
	select {
	case r.spare <- b.jobs[:0]:
	default:
	}
}

// resolveLocked looks up the handles of a submission and checks access and range.
func (r *ring) resolveLocked(j *job) error {
	f, ok := r.nameLocked(j, j.File).(*file)
	if !ok {
		return unix.EBADF
	}
	j.file = f.ext
	if j.Op == wire.OpSync {
		return nil
	}
	var private bool
	switch m := r.nameLocked(j, j.Memory).(type) {
	case *memory:
		j.mem, j.stage, private = m.mem, m.stage, true
	case *mapping:
		j.mem, private = m.hold.Memory(), !m.hold.Shared()
	default:
		return unix.EBADF
	}
	size := uint64(j.mem.Size())
	switch {
	case j.Op != wire.OpRead && j.Op != wire.OpWrite:
		return unix.EOPNOTSUPP
	case j.Op == wire.OpRead && (!f.ext.Readable || !private), j.Op == wire.OpWrite && !f.ext.Writable:
		return unix.EACCES
	case j.MemOff > size || j.Len > size-j.MemOff || j.FileOff > math.MaxInt64/2:
		return unix.EINVAL
	}
	return nil
}

// nameLocked returns the handle that a number was when the job was put in, and marks it as in use until the job has ended.
func (r *ring) nameLocked(j *job, number uint32) handle {
	at := 0 // of a job's handles
	if j.uses[0] != nil {
		at = 1
	}
	u := r.recent[at]
	if u == nil || u.number != number {
		if u = r.uses[number]; u == nil {
			return nil
		}
		r.recent[at] = u
	}
	if r.looked < u.from || r.looked >= u.until {
		return nil
	}
	u.n++
	j.uses[at] = u
	return u.h
}

// worker carries out batches until the ring ends, or another ring wants its place; the ring's first has none.
func (r *ring) worker(first bool) {
	var t scratch
	var wanted wants
	if !first {
		wanted = r.tenant.wants()
	}
	w := newWaiter()
	for {
		b, ok, moved := r.queue.take(w, &r.tenant.p.threads, wanted)
		switch {
		case moved:
			r.started.Add(-1)
			r.tenant.lost()
		case !ok && !first:
			r.tenant.give()
		}
		if ok {
			r.carryOut(b.jobs, &t)
			r.complete(b, &t)
		}
		if !ok || moved {
			return
		}
	}
}

// cuts says whether a read is read in parts. Where others keep the device and the bus busy one long copy is better: of seven requests of 32 MiB under way on an H200 52.9 GB/s
// instead of 51.
func (r *ring) cuts(j *job) bool {
	return j.Len > inParts && (j.Len > mostPart || j.mem.Staged() || r.inFlight.Load() < crowd)
}

// scratch is memory for carrying out a batch, kept for the next one.
type scratch struct {
	results   [mostEntries]int64
	done      [mostEntries]wire.Completion
	transfers []ext4.Transfer
	of        []int // index of each transfer's job
}

// carryOut carries out the writes and syncs of a batch, then its reads. A write or a sync comes after the writes before it.
func (r *ring) carryOut(b []job, t *scratch) {
	results := t.results[:len(b)]
	written, writes, planned := 0, 0, 0 // jobs whose writes are done; how many there are; how many of them WriteAll planned
	flush := func(upTo int) {
		for ; written < upTo; written++ {
			if j := &b[written]; j.err == nil && j.Op == wire.OpWrite && j.file != nil {
				planned += t.write(r.stopWrite, b[written:upTo], results[written:upTo])
			}
		}
	}
	gone := r.ending.now()
	for i := range b {
		j := &b[i]
		if gone && j.err == nil {
			j.err = errEnding
		}
		switch {
		case j.err != nil:
			results[i] = negative(j.err)
		case j.Op == wire.OpRead && r.cuts(j):
			done, err := fetch(r.ending, j.file, j.mem, int64(j.FileOff), int64(j.MemOff), int64(j.Len), nil)
			if results[i] = done; err != nil {
				results[i] = negative(err)
			}
			j.file = nil
		case j.Op == wire.OpWrite && (j.Len > piece || j.mem.Staged()):
			flush(i)
			done, err := store(r.ending, j.file, j.mem, int64(j.FileOff), int64(j.MemOff), int64(j.Len))
			if results[i] = done; err != nil {
				results[i] = negative(err)
			}
			j.file = nil
			writes++
		case j.Op == wire.OpWrite: // in flush
			writes++
		case j.Op == wire.OpRead: // below
		default:
			flush(i)
			results[i] = negative(j.file.Sync())
		}
	}
	flush(len(b))
	if writes > 0 && r.apart.Load() != (planned < writes) {
		r.apart.Store(planned < writes)
	}
	for i := range b {
		if j := &b[i]; j.err == nil && j.Op == wire.OpRead && j.file != nil {
			t.read(r.ending, b[i:], results[i:])
		}
	}
}

// complete puts the completions of a batch into the ring and wakes the client if it sleeps.
func (r *ring) complete(b batch, t *scratch) {
	for _, m := range r.moved {
		m.add(b.jobs, t.results[:len(b.jobs)])
	}
	done := t.done[:len(b.jobs)]
	for i := range b.jobs {
		done[i] = wire.Completion{Data: b.jobs[i].Data, Result: t.results[i]}
	}
	r.mu.Lock()
	r.rings.Complete(done...)
	for i := range b.jobs {
		for _, u := range b.jobs[i].uses {
			if u != nil {
				u.n--
			}
		}
	}
	r.ended.Broadcast()
	r.inFlight.Add(-int64(len(b.jobs)))
	r.mu.Unlock()
	r.recycle(b)
	if r.rings.WakeClient() {
		r.event.Signal()
	}
}

// gather makes transfers of all jobs of the first job's file and operation. It sets file to nil in those jobs.
func (t *scratch) gather(b []job) *fs.External {
	f, op := b[0].file, b[0].Op
	t.transfers, t.of = t.transfers[:0], t.of[:0]
	for i := range b {
		if j := &b[i]; j.err == nil && j.Op == op && j.file == f {
			t.transfers = append(t.transfers, ext4.Transfer{Off: int64(j.FileOff), N: int(j.Len), Mem: j.mem, At: int(j.MemOff)})
			t.of, j.file = append(t.of, i), nil
		}
	}
	return f
}

// ended stores what became of the transfers.
func (t *scratch) ended(results []int64) {
	for k, i := range t.of {
		if results[i] = int64(t.transfers[k].Done); t.transfers[k].Err != nil {
			results[i] = negative(t.transfers[k].Err)
		}
	}
}

// read carries out all reads of the first job's file in one call.
func (t *scratch) read(end ends, b []job, results []int64) {
	read(end, t.gather(b), t.transfers)
	t.ended(results)
}

// write carries out all writes of the first job's file in one call, and returns how many of them were planned.
func (t *scratch) write(stop func() error, b []job, results []int64) (planned int) {
	f := t.gather(b)
	for i := range t.transfers {
		t.transfers[i].Stop = stop
	}
	planned = f.WriteAll(t.transfers)
	t.ended(results)
	return planned
}

// negative returns the result of a completion for err: a negative errno, 0 for nil.
func negative(err error) int64 {
	if err == nil {
		return 0
	}
	if errors.Is(err, os.ErrClosed) {
		return -int64(unix.ESHUTDOWN)
	}
	return -int64(fs.Errno(err))
}
