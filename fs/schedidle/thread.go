package schedidle

import (
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
	kept    time.Duration // for which others had kept the thread from running then
	program uint32        // whose last request that was, if it is to be seen how long it runs; else 0
	ran     time.Duration // for which that had run then
	calm    calm          // of the CPU's pause
	lost    bool          // the guard gave the old one back
	useless bool          // nothing can be had
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
			s.files = &files{pathOf(uint32(s.tid), "stat"), pathOf(uint32(s.tid), "schedstat")}
			s.phase.Store(waits)
			s.state.Store(normal)
			t := &Thread{g: g, s: s, cpu: cpu, start: since()}
			here.add(t)
			return t
		}
	}
	return nil
}

// On says to which CPU the thread is bound from now on, because it has many requests there, of which it has one. If the CPU is not one that others keep busy the
// thread keeps the policy, or gets it.
func (t *Thread) On(cpu *CPU) {
	if t == nil {
		return
	}
	t.cpu = cpu
	t.s.phase.Store(answers)
	now := since()
	if int64(now) < cpu.notBefore.Load() {
		t.Leave()
	} else if !t.asked {
		t.n, t.start = 0, now
		t.get(now)
	}
}

// Remove takes the thread out of the group, with the policy that it had before.
func (t *Thread) Remove() {
	if t == nil {
		return
	}
	t.Leave()
	here.remove(t)
	t.s.state.Store(unused)
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

// Asks is called when the thread is about to make a system call that returns with a request, if Due does not show one that it has not seen.
func (t *Thread) Asks() {
	if t != nil {
		t.s.phase.Store(asks)
	}
}

// Took is called when the thread has a request, before Due says that it has seen it. program is the thread that made it, which waits for the answer; 0: it is not known, or the kernel made it.
// It reports whether the guard has taken the policy from the thread since, and let it go.
func (t *Thread) Took(program uint32) (lost bool) {
	if t == nil {
		return false
	}
	t.s.taken.Add(1)
	t.s.phase.Store(answers)
	t.notice()
	lost, t.lost = t.lost, false
	if t.n++; t.n < many {
		return lost
	}
	now := since()
	took := now - t.start
	t.n, t.start = 0, now
	switch {
	case t.asked:
		if t.delayed(program) {
			t.pause(now)
			t.Leave()
		}
	case took <= manyIn:
		t.resume(now, took)
		t.get(now)
	}
	return lost
}

// Answered is called when the request is answered, but for the system call that says so: Due knows of that.
func (t *Thread) Answered() {
	if t != nil {
		t.notice()
		t.s.phase.Store(waits)
	}
}

// notice is that the guard has given its old policy back, at once: what keeps it from running later was not the reason.
func (t *Thread) notice() {
	if !t.asked || t.s.state.Load() != normal {
		return
	}
	t.asked, t.lost = false, true
	now := since()
	t.n, t.start = 0, now
	if t.s.late.Load() != 0 {
		if _, kept, ok := t.s.files.schedstat.times(); ok && kept-time.Duration(t.s.kept.Load()) >= starved {
			t.pause(now)
		}
	}
}

// delayed says whether others than the program kept the thread from running for too long while it answered many requests. The program itself does that, too: it is woken before
// the thread has said that it waits, and works. That delays nobody. How long it runs is looked at only where there is a reason to.
func (t *Thread) delayed(program uint32) bool {
	_, kept, ok := t.s.files.schedstat.times()
	d := kept - t.kept
	t.kept = kept
	if !ok || d < delayed || program == 0 {
		t.program = 0
		return false
	}
	path := pathOf(program, "schedstat")
	ran, _, ok := path.times()
	if !ok {
		t.program = 0
		return false
	}
	d -= ran - t.ran
	known := program == t.program
	t.program, t.ran = program, ran
	return known && d >= delayed
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

// get gives the thread SCHED_IDLE, if that may be.
func (t *Thread) get(now time.Duration) {
	if !t.useless && int64(now) >= t.cpu.notBefore.Load() && t.g.broken.Load() == 0 && t.g.ours() {
		t.ask()
	}
}

// ask gives the thread SCHED_IDLE.
func (t *Thread) ask() {
	s := t.s
	_, kept, ok := s.files.schedstat.times()
	if !ok {
		return // there are no descriptors
	}
	if keepIOClass() != nil {
		t.useless = true
		return
	}
	t.kept, t.program, t.calm = kept, 0, calm{}
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

// pause notes that others kept the thread from running.
func (t *Thread) pause(now time.Duration) {
	t.g.pauses.Add(1)
	t.cpu.busy(now)
}

// calm is what a thread without the policy has seen of its CPU.
type calm struct{ took, kept time.Duration } // that requests took, and for which others kept the thread from running meanwhile

// resume ends a pause of the CPU if nobody computes there any more: who does keeps the thread from running for a third to a half of the time of its requests, a program that waits for
// them for a hundredth to an eighth.
func (t *Thread) resume(now, took time.Duration) {
	until := t.cpu.notBefore.Load()
	if int64(now) >= until {
		return
	}
	_, kept, ok := t.s.files.schedstat.times()
	if !ok {
		return
	}
	t.calm.took += took
	t.calm.kept += kept - t.kept // since the requests before; if those are older it is too much
	t.kept = kept
	if t.calm.took < max(calmFor, time.Duration(t.cpu.pause.Load())/calmShare) {
		return
	}
	if t.calm.kept < t.calm.took/calmKept {
		t.cpu.notBefore.CompareAndSwap(until, int64(now))
	}
	t.calm = calm{}
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
