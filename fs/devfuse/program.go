package devfuse

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/lanefs/lanefs/fs/affinity"
	"github.com/lanefs/lanefs/fs/schedidle"
)

// program is whether one program works at a time, and where it runs.
type program struct {
	cpu  atomic.Int32 // where it ran when that was last asked; or anywhere: several programs work, or their requests are large or take long
	long atomic.Int32 // requests that took long, since the last one

	soon  atomic.Int32 // requests after which /proc is asked again, if the program seems to be elsewhere
	moved atomic.Int32 // how often in a row a reader without SCHED_IDLE found it elsewhere
	rest  atomic.Int32 // looks for which it is not followed
	never bool         // /proc says nothing of programs
	plain bool         // readers have no SCHED_IDLE

	mu    sync.Mutex
	last  uint32        // the thread that made the last request
	n     int           // requests since the last look
	since time.Duration // when the first of them was taken
	mixed int           // of these, those by which one program at a time was not to be told: see saw
	asked int           // n when /proc was last to be asked
	aways int           // requests since the last look that came late
}

const (
	anywhere = affinity.Nowhere
	maxCPUs  = 1024 // as many as a unix.CPUSet has

	look        = 32                     // requests between looks
	lookIn      = 32 * time.Millisecond  // for which a program is followed
	lookSoon    = 1                      // requests after which a new thread, or one that seems to run elsewhere, is looked at; twice as many if it was not
	longRequest = 200 * time.Microsecond // in which it is handled
	awayGap     = 25 * time.Microsecond  // from an answer to the next request, which is shorter where both stay on a CPU
	mostMixed   = look / 4               // of them
	mostMoves   = 4                      // in a row, or
	mostAway    = look * 3 / 4           // late requests: the program is woken on another CPU each time,
	moveRest    = 16                     // and is not followed for so many looks
	largeData   = 64 << 10               // bytes of a request or an answer: the kernel reads and writes ahead, and more CPUs than one are of use
)

// request is what is known of one when it is taken.
type request struct {
	thread   uint32 // that made it; 0: the kernel did, and no program waits
	together bool   // others that programs wait for are under way
	large    bool
	async    bool          // the thread may not wait for it
	at       time.Duration // when it was taken, since epoch
	away     bool          // it came so long after the last answer that the program may run elsewhere
}

// saw takes note of a request. Programs that work at the same time are told by requests that are under way together, and by threads that take turns. A
// few changes of the thread are a program and its children, one of which waits for the other. Where requests take long there is little to
// win, and others would wait until the guard has them relieved. It reports whether /proc is to be asked where the thread runs: see ask.
func (p *program) saw(q request) (ask bool) {
	if p.never || q.thread == 0 && !q.large {
		return false
	}
	if !p.mu.TryLock() {
		return false // another request is just taken note of
	}
	defer p.mu.Unlock()
	if q.thread == 0 {
		p.mixed++
		return false
	}
	if p.n++; p.n == 1 {
		p.since = q.at
	}
	another := q.thread != p.last
	p.last = q.thread
	if another || q.together || q.large {
		p.mixed++
	}
	p.mixed += int(p.long.Swap(0))
	if q.away {
		p.aways++
	}
	full := p.n >= look
	if !full && !((another || q.away) && p.cpu.Load() != anywhere && p.n-p.asked >= int(p.soon.Load())) {
		return false
	}
	if p.plain && full && p.aways > mostAway && p.cpu.Load() != anywhere {
		p.rest.Store(moveRest)
	}
	rests := full && p.rest.Load() > 0
	if rests {
		p.rest.Add(-1)
	}
	if p.mixed > mostMixed || full && q.at-p.since > lookIn || rests {
		p.cpu.Store(anywhere)
	} else {
		p.asked, ask = p.n, true
	}
	if full {
		p.n, p.mixed, p.asked, p.aways = 0, 0, 0, 0
	}
	return ask
}

// ask asks /proc where a thread runs. The kernel holds the memory of the thread's program meanwhile. If the program ends just then, it is the caller
// who gives the memory back, and who waits for what that waits for: the program's asynchronous reads and writes (exit_aio), and those of
// its dirty pages (fuse_vma_close). So a request that the thread may not wait for is answered before, and somebody else must take others.
//
// Without SCHED_IDLE the kernel wakes a program on another CPU, if one stands idle, since the reader runs on its own. Then it is elsewhere each time, and to follow it gains nothing. Where
// others keep all CPUs busy it stays.
func (p *program) ask(r *reader, thread uint32) {
	cpu, ok := whereRuns(thread)
	if ok && cpu == anywhere {
		p.cpu.Store(anywhere)
		return
	}
	if !ok || !r.thread.May(cpu) {
		return
	}
	switch before := p.cpu.Swap(int32(cpu)); {
	case before == int32(cpu):
		p.moved.Store(0)
		p.soon.Store(min(2*p.soon.Load(), look))
	case r.idle == nil && p.moved.Add(1) >= mostMoves:
		p.moved.Store(0)
		p.rest.Store(moveRest)
		p.cpu.Store(anywhere)
	default:
		p.soon.Store(lookSoon)
	}
}

// whereRuns is RunsOn, but in tests.
var whereRuns = schedidle.RunsOn

// place has the thread run where the program does.
func (r *reader) place() {
	want := int(r.t.program.cpu.Load())
	switch {
	case want == r.thread.CPU():
	case want == anywhere || !r.thread.Bind(want):
		r.leave()
	default:
		r.idle.On(&r.t.sched[want])
	}
}

// leave has the thread run wherever it may.
func (r *reader) leave() {
	if r.bound() {
		r.idle.Leave()
		r.thread.Free()
	}
}

// bound says whether the thread runs where the program does.
func (r *reader) bound() bool { return r.thread.CPU() != anywhere }
