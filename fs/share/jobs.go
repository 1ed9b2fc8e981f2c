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

// batches looks up the handles of submissions and cuts them into batches of about batchBytes.
func (r *ring) batches(subs []wire.Submission) (all [][]job) {
	var b []job
	bytes := uint64(0)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range subs {
		j := job{Submission: s}
		j.err = r.resolveLocked(&j)
		if len(b) > 0 && bytes+s.Len > batchBytes {
			all, b, bytes = append(all, b), nil, 0
		}
		b = append(b, j)
		bytes += min(s.Len, batchBytes)
	}
	return append(all, b)
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

// nameLocked returns the handle of a number and marks it as in use until the job has ended.
func (r *ring) nameLocked(j *job, number uint32) handle {
	u := r.uses[number]
	if u == nil {
		return nil
	}
	u.n++
	if j.uses[0] == nil {
		j.uses[0] = u
	} else {
		j.uses[1] = u
	}
	return u.h
}

// worker carries out batches until the channel is closed.
func (r *ring) worker() {
	var t scratch
	for b := range r.work {
		r.carryOut(b, &t)
		r.complete(b, &t)
	}
}

// scratch is memory for carrying out a batch, kept for the next one.
type scratch struct {
	results   [batchEntries]int64
	transfers []ext4.Transfer
	of        []int // index of each transfer's job
}

func (r *ring) carryOut(b []job, t *scratch) {
	results := t.results[:len(b)]
	for i := range b {
		j := &b[i]
		switch {
		case j.err != nil:
			results[i] = negative(j.err)
		case j.Op == wire.OpRead && j.Len > piece:
			done, err := fetch(r.ending, j.file, j.mem, int64(j.FileOff), int64(j.MemOff), int64(j.Len))
			if results[i] = done; err != nil {
				results[i] = negative(err)
			}
			j.file = nil
		case j.Op == wire.OpRead: // below
		case j.Op == wire.OpWrite:
			done, err := store(r.ending, j.file, j.mem, int64(j.FileOff), int64(j.MemOff), int64(j.Len))
			if results[i] = done; err != nil {
				results[i] = negative(err)
			}
		default:
			results[i] = negative(j.file.Sync())
		}
	}
	for i := range b {
		if j := &b[i]; j.err == nil && j.Op == wire.OpRead && j.file != nil {
			t.read(b[i:], results[i:])
		}
	}
}

// complete puts the completions of a batch into the ring and wakes the client if it sleeps.
func (r *ring) complete(b []job, t *scratch) {
	for _, m := range r.moved {
		m.add(b, t.results[:len(b)])
	}
	r.mu.Lock()
	for i := range b {
		r.rings.Complete(wire.Completion{Data: b[i].Data, Result: t.results[i]})
		for _, u := range b[i].uses {
			if u != nil {
				u.n--
			}
		}
	}
	r.ended.Broadcast()
	r.inFlight.Add(-int64(len(b)))
	r.mu.Unlock()
	if r.rings.WakeClient() {
		r.event.Signal()
	}
}

// read carries out all reads of the first job's file in one call. It sets file to nil in those jobs.
func (t *scratch) read(b []job, results []int64) {
	f := b[0].file
	t.transfers, t.of = t.transfers[:0], t.of[:0]
	for i := range b {
		if j := &b[i]; j.err == nil && j.Op == wire.OpRead && j.file == f {
			t.transfers = append(t.transfers, ext4.Transfer{Off: int64(j.FileOff), N: int(j.Len), Mem: j.mem, At: int(j.MemOff)})
			t.of, j.file = append(t.of, i), nil
		}
	}
	read(f, t.transfers)
	for k, i := range t.of {
		if results[i] = int64(t.transfers[k].Done); t.transfers[k].Err != nil {
			results[i] = negative(t.transfers[k].Err)
		}
	}
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
