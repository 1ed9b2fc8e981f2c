package devfuse

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/exchange"
	"github.com/lanefs/lanefs/fs/schedidle"
)

// Options of Start.
type Options struct {
	// Payload is how many bytes a request or an answer carries at most besides its headers: the mount's max_write.
	Payload int
	// Alloc gives payloads of the readers that stay; it may give none, and the payload is anonymous memory, which costs what is used of it. nil: all are.
	Alloc func(size int) *exchange.Payload
	// Room says whether the process may have one more thread: Go's runtime ends the process when the kernel refuses one. It is asked before each
	// but the first ones. nil: it may.
	Room func() error
	// SchedIdle has readers that follow a program have SCHED_IDLE, where that can be had (see package schedidle). Threads that they start, as
	// the kernel's workers for an io_uring, would inherit it: a Handler calls schedidle.LeaveHere before that.
	SchedIdle bool
	// Failed is told that /dev/fuse cannot be read any more, though the connection has not ended: the mount's requests may wait for ever, unless
	// the connection is aborted. nil: nothing is.
	Failed func(err error)
	Log    *slog.Logger // nil: discard
}

const (
	firstReaders = 2 // from the start; and as many wait while a program is followed
	mostWaiting  = 16
	keptReaders  = 8 // stay when they have nothing to do
	// mostReaders is how many requests may be under way, each with a payload. Those that wait for other requests are fewer (see fs, pagesGone).
	mostReaders = 64
)

// Transport serves a connection.
type Transport struct {
	opt     Options
	fd      int
	handler exchange.Handler
	data    exchange.Data // the handler, if it is one; else nil
	crowd   int32         // readers that wait while several programs work

	waiting  atomic.Int32 // readers that are in read(2) or about to be
	underway atomic.Int32 // requests that a program waits for
	answered atomic.Int64 // when one was last, since epoch
	program  program
	running  sync.WaitGroup
	idle     *schedidle.Group // nil: not wanted, or it cannot be had
	noIdle   error            // why it cannot
	sched    []schedidle.CPU  // by CPU
	relief   schedidle.Bell

	mu       sync.Mutex
	readers  int
	parked   []*reader
	payloads []*exchange.Payload // of Alloc's, that no reader has
	short    bool                // there was no room for a reader, which was said
	busy     bool                // as many requests were under way as may be, which was said
	ended    bool
}

// Start serves the connection of a descriptor of /dev/fuse, whose INIT has been answered, and which becomes the Transport's, also if there is an error.
// Nobody else may read it.
func Start(fd int, h exchange.Handler, opt Options) (*Transport, error) {
	page := os.Getpagesize()
	opt.Payload = (max(opt.Payload, exchange.MinPayload) + page - 1) / page * page
	if opt.Alloc == nil {
		opt.Alloc = func(int) *exchange.Payload { return nil }
	}
	if opt.Room == nil {
		opt.Room = func() error { return nil }
	}
	if opt.Failed == nil {
		opt.Failed = func(error) {}
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	t := &Transport{opt: opt, fd: fd, handler: h, crowd: int32(min(2*runtime.NumCPU(), mostWaiting)), sched: make([]schedidle.CPU, maxCPUs)}
	t.data, _ = h.(exchange.Data)
	t.program.cpu.Store(anywhere)
	t.program.never = schedidle.OwnProc() != nil
	if opt.SchedIdle {
		if t.idle, t.noIdle = schedidle.New(mostReaders); t.noIdle != nil {
			opt.Log.Debug("/dev/fuse: programs may be woken on other CPUs than their own", "why", t.noIdle)
		}
	}
	t.program.plain = t.idle == nil
	for range keptReaders + t.crowd {
		if p := opt.Alloc(opt.Payload); p != nil {
			t.payloads = append(t.payloads, p)
		}
	}
	first := make([]*reader, firstReaders)
	for i := range first {
		var err error
		if first[i], err = t.newReader(); err != nil {
			for _, r := range first[:i] {
				t.remove(r)
			}
			t.end()
			t.Wait()
			return nil, err
		}
	}
	for _, r := range first {
		t.begin(r)
	}
	if t.idle != nil {
		t.running.Add(1)
		go t.relieve()
	}
	return t, nil
}

// most is how many readers may wait, r among them.
func (t *Transport) most(r *reader) int32 {
	if r.idle.Idle() {
		return 1
	}
	if t.program.cpu.Load() != anywhere {
		return firstReaders
	}
	return t.crowd
}

// relieve has another reader wait where the only one is held up. If that is in the middle of its answer, it counts as one that waits.
func (t *Transport) relieve() {
	defer t.running.Done()
	for rung := uint32(0); ; {
		rung = t.relief.Wait(rung)
		t.mu.Lock()
		ended := t.ended
		t.mu.Unlock()
		if ended {
			return
		}
		t.another(1)
	}
}

// need has another reader wait if none does, and the guard does not see to that: r is about to do what may take long.
func (t *Transport) need(r *reader) {
	if t.waiting.Load() <= 0 && !r.idle.Idle() {
		t.another(0)
	}
}

// another has one more reader wait, if no more than so many do.
func (t *Transport) another(waiting int32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended || t.waiting.Load() > waiting {
		return
	}
	if n := len(t.parked); n > 0 {
		r := t.parked[n-1]
		t.parked = t.parked[:n-1]
		t.waiting.Add(1)
		r.unpark <- struct{}{}
		return
	}
	err := errTooMany
	if t.readers < mostReaders {
		if err = t.opt.Room(); err == nil {
			var r *reader
			if r, err = t.newReader(); err == nil {
				t.begin(r)
				return
			}
		}
	}
	said, level, what := &t.short, slog.LevelWarn, "/dev/fuse: requests that block may hold up others"
	if errors.Is(err, errTooMany) {
		said, level, what = &t.busy, slog.LevelInfo, "/dev/fuse: requests wait for those under way"
	}
	if !*said { // the next reader that has answered waits
		*said = true
		t.opt.Log.Log(context.Background(), level, what, "threads", t.readers, "why", err)
	}
}

var errTooMany = errors.New("there are as many threads as there may be")

// Waits is called by a request that is about to wait for others, and reports whether somebody will take those. If not, there may be no more readers, and
// the caller must not wait without a limit, or all might. Of no Transport, nil, it does nothing.
func (t *Transport) Waits() bool {
	if t == nil {
		return true
	}
	if t.waiting.Load() <= 0 && !t.relievable() {
		t.another(0)
		return t.waiting.Load() > 0
	}
	return true
}

// relievable says whether the guard of SCHED_IDLE, which looks after the only reader, has one to wake if that is held up. Mostly it is not, and to wake another would cost more than
// the request.
func (t *Transport) relievable() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.idle != nil && t.program.cpu.Load() != anywhere && len(t.parked) > 0
}

// begin has a new reader wait.
func (t *Transport) begin(r *reader) {
	t.waiting.Add(1)
	t.running.Add(1)
	go r.run()
}

// await has the reader, which counts as one that waits, do that, or parks it until it is to. It reports false if it is to end: the connection has, or there are
// enough.
func (t *Transport) await(r *reader) bool {
	if t.waiting.Load() <= t.most(r) {
		return true
	}
	t.mu.Lock()
	if t.waiting.Add(-1) == 0 || t.ended {
		t.waiting.Add(1)
		t.mu.Unlock()
		return true // read(2) tells of the end
	}
	if len(t.parked) == keptReaders {
		t.mu.Unlock()
		return false
	}
	t.parked = append(t.parked, r)
	t.mu.Unlock()
	_, ok := <-r.unpark
	return ok
}

// end has parked readers end, and gives back what no reader has.
func (t *Transport) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	t.relief.Ring()
	for _, r := range t.parked {
		close(r.unpark)
	}
	t.parked = nil
	for _, p := range t.payloads {
		p.Free()
	}
	t.payloads = nil
}

// remove has a reader, and no thread uses it any more.
func (t *Transport) remove(r *reader) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.readers--
	if r.pinned && !t.ended {
		t.payloads = append(t.payloads, r.x.Payload)
	} else {
		r.x.Payload.Free()
	}
}

// Wait returns when the connection has ended, the last request was handled, and all memory is given back.
func (t *Transport) Wait() {
	t.running.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.idle != nil {
		t.idle.Close()
		t.idle = nil
	}
	if t.fd >= 0 {
		unix.Close(t.fd)
		t.fd = -1
	}
}

// SchedIdle is as uring.Transport's.
func (t *Transport) SchedIdle() (*schedidle.Stats, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.idle == nil {
		return nil, t.noIdle
	}
	s := t.idle.Stats()
	return &s, nil
}

// over says whether an error of read(2) is what the end of a connection looks like.
func over(err error) bool { return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ECONNABORTED) }
