package schedidle

import (
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// CPU is what threads that are bound to one CPU have learnt of others there.
type CPU struct {
	notBefore atomic.Int64 // ns, as since counts: until then none gets the policy
	pause     atomic.Int64 // ns, the last one
}

// Thread is a thread of a group. But for the guard, only that thread uses it.
type Thread struct {
	g       *Group
	s       *slot
	cpu     *CPU
	asked   bool          // it asked for the policy, and has not noticed yet that the guard gave the old one back
	n       int           // requests since start
	start   time.Duration // of counting them
	sched   *os.File      // schedstat; nil: not opened yet
	waited  time.Duration // what that said when it was read last
	buf     [96]byte
	useless bool // nothing can be had
}

var epoch = time.Now()

// since is the time that goes on.
func since() time.Duration { return time.Since(epoch) }

// Add takes the calling goroutine's thread, which it keeps, into the group. cpu is of the CPU to which it is bound; due stays readable until Remove. It
// returns nil where the group is nil or full; all methods may be called then.
func (g *Group) Add(cpu *CPU, due Due) *Thread {
	if g == nil {
		return nil
	}
	for i := range g.slots {
		s := &g.slots[i]
		if s.state.Load() == unused && s.state.CompareAndSwap(unused, returning) {
			s.tid, s.due = int32(unix.Gettid()), due
			s.busy.Store(0)
			s.state.Store(normal)
			return &Thread{g: g, s: s, cpu: cpu, start: since()}
		}
	}
	return nil
}

// On says to which CPU the thread is bound from now on, because it has many requests there: if the CPU is not one that others keep busy the
// thread keeps the policy, or gets it with the next request.
func (t *Thread) On(cpu *CPU) {
	if t == nil {
		return
	}
	t.cpu = cpu
	now := since()
	switch {
	case int64(now) < cpu.notBefore.Load():
		t.Leave()
		t.n, t.start = 0, now
	case !t.asked:
		t.n, t.start = many-1, now
	}
}

// Remove takes the thread out of the group, with the policy that it had before.
func (t *Thread) Remove() {
	if t == nil {
		return
	}
	t.Leave()
	t.s.state.Store(unused)
	if t.sched != nil {
		t.sched.Close()
		t.g.open.Add(-1)
	}
}

// Idle says whether the thread has the policy. If it has when it has taken a request, Relief is rung before others wait for long.
func (t *Thread) Idle() bool { return t != nil && t.asked && t.s.state.Load() == idle }

// Leave gives the thread its old policy back, if it has SCHED_IDLE: what it does next may take long, or it may run elsewhere.
func (t *Thread) Leave() {
	if t == nil {
		return
	}
	t.asked = false
	for t.s.state.Load() != normal {
		if t.s.state.CompareAndSwap(idle, returning) {
			t.g.end(t.s)
			return
		}
		runtime.Gosched() // the guard has it
	}
}

// Took is called when the thread has taken a request.
func (t *Thread) Took() {
	if t == nil {
		return
	}
	t.s.taken.Add(1)
	t.s.busy.Store(1)
	t.n++
	lost := t.asked && t.s.state.Load() == normal
	if t.n < many && !lost {
		return
	}
	now := since()
	took := now - t.start
	t.n, t.start = 0, now
	switch {
	case t.asked:
		if lost {
			t.asked = false
			t.kept(now, delayedOnce)
		} else if t.kept(now, delayed) {
			t.Leave()
		}
	case took <= manyIn && !t.useless && int64(now) >= t.cpu.notBefore.Load() && t.g.broken.Load() == 0 && t.g.ours():
		t.ask()
	}
}

// Answered is called when the request is answered, but for the system call that says so: Due knows of that.
func (t *Thread) Answered() {
	if t != nil {
		t.s.busy.Store(0)
	}
}

// ours says whether the calling thread has the policy that it began with, and a nice value with which it need not run before others. An administrator may
// have changed either (chrt, renice).
func (g *Group) ours() bool {
	policy, err := getPolicy()
	if err != nil || policy != g.policy {
		return false
	}
	nice, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	return err == nil && nice <= normalNice
}

// ask gives the thread SCHED_IDLE.
func (t *Thread) ask() {
	if !t.open() || keepIOClass() != nil {
		t.useless = true
		return
	}
	s := t.s
	s.fresh.Store(1)
	if !s.state.CompareAndSwap(normal, entering) { // before it has the policy: from then on it may not run
		return // the guard is about to give it the old one back, and was kept from running itself
	}
	if t.g.active.Add(1) == 1 {
		futexWake(&t.g.active)
	}
	if errno := setPolicy(0, unix.SCHED_IDLE|t.g.policy&resetOnFork); errno != 0 {
		t.useless = true
		t.s.state.Store(normal)
		t.g.active.Add(^uint32(0))
		return
	}
	t.asked = true
	t.g.idles.Add(1)
	s.state.Store(idle)
}

// open opens what the kernel says of the thread. It cannot be where few descriptors are left.
func (t *Thread) open() bool {
	if t.sched == nil {
		if t.g.open.Add(1) > t.g.mostOpen {
			t.g.open.Add(-1)
			return false
		}
		f, err := os.Open("/proc/thread-self/schedstat")
		if err != nil {
			t.g.open.Add(-1)
			return false
		}
		t.sched = f
	}
	_, ok := t.delay()
	return ok
}

// kept says whether others kept the thread from running for so long since it was called last, and notes that for the CPU.
func (t *Thread) kept(now, long time.Duration) bool {
	d, ok := t.delay()
	if !ok || d < long {
		return false
	}
	t.g.pauses.Add(1)
	t.cpu.busy(now)
	return true
}

// busy has no thread of the CPU get the policy for a while.
func (c *CPU) busy(now time.Duration) {
	last, until := time.Duration(c.pause.Load()), time.Duration(c.notBefore.Load())
	if now < until {
		return // another thread has said so
	}
	next := firstPause
	if last > 0 && now < until+4*last {
		next = min(2*last, longestPause)
	}
	c.pause.Store(int64(next))
	c.notBefore.Store(int64(now + next))
}

// delay is for how long others have kept the thread from running since it was called last: the second number of its schedstat, in ns.
func (t *Thread) delay() (time.Duration, bool) {
	n, err := t.sched.ReadAt(t.buf[:], 0)
	waited, ok := second(t.buf[:n])
	if n == 0 && err != nil || !ok {
		return 0, false
	}
	d := waited - t.waited
	t.waited = waited
	return d, true
}

// second is the second of numbers with spaces between them. It allocates nothing.
func second(line []byte) (n time.Duration, ok bool) {
	field := 0
	for _, c := range line {
		switch {
		case c == ' ':
			field++
		case c < '0' || c > '9':
			return n, ok && field == 1
		case field == 1:
			n, ok = 10*n+time.Duration(c-'0'), true
		}
		if field > 1 {
			break
		}
	}
	return n, ok
}
