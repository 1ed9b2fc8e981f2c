package schedidle

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"structs"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/affinity"
	"github.com/lanefs/lanefs/gpu/thread"
)

const (
	// Lap is how often the guard looks, and shortLap when it looks again at a thread that seems not to run.
	Lap      = 2 * time.Millisecond
	shortLap = time.Millisecond

	many   = 32                    // requests, of a thread that gets the policy,
	manyIn = 32 * time.Millisecond // if it took no longer for them
	few    = 2                     // requests of a lap: with fewer in each of quiet laps it loses the policy
	quiet  = 50

	delayed      = 6 * time.Millisecond // for which others keep a thread from running while it answers many requests: too long,
	starved      = shortLap             // and since the guard has seen that somebody waits for it
	firstPause   = 20 * time.Millisecond
	longestPause = 8 * time.Second

	calmFor   = 250 * time.Millisecond // of requests, and a part of the pause, in which others must have kept
	calmShare = 16
	calmKept  = 5 // a thread from running for less than such a part, to end the pause
)

// resetOnFork is SCHED_RESET_ON_FORK, a bit of what sched_getscheduler(2) returns.
const resetOnFork = 0x40000000

// normalNice is what getpriority(2) says of a nice value of 0: the kernel gives 20 less that value.
const normalNice = 20

// Group is the threads of a process that one guard looks after.
type Group struct {
	policy   int // of its threads, but for SCHED_IDLE
	slots    []slot
	active   atomic.Uint32 // slots that are not normal; the guard sleeps while there are none
	stopping atomic.Uint32
	stopped  chan struct{}
	stop     sync.Once
	broken   atomic.Uint32 // the kernel has refused to give a policy back: no thread gets SCHED_IDLE any more
	idles    atomic.Uint64 // how often a thread got the policy
	pauses   atomic.Uint64 // how often one was kept from running
	left     atomic.Uint64 // how often LeaveHere took it from one
}

// slot is what the guard knows of a thread: two cache lines.
type slot struct {
	state atomic.Uint32
	taken atomic.Uint32 // requests
	tid   int32         // written before the state says that there is a thread
	last  uint32        // the guard's: taken a lap ago
	laps  uint32        // the guard's: those in a row with few requests
	fresh atomic.Uint32 // the thread has just got the policy: last is not of now
	phase atomic.Uint32
	late  atomic.Uint32 // somebody waited at the end of the last lap
	kept  atomic.Int64  // for how long others had kept the thread from running then, in ns
	files *files
	due   Due
	_     [16]byte
}

// Phases of a thread.
const (
	waits   = iota // it has no request: Due says whether there is one
	answers        // a request
	asks           // for one, in a system call that returns it: it may have one already, which Due does not show, and not run
)

// files are the thread's in /proc.
type files struct{ stat, schedstat taskPath }

// Due says that somebody waits for a thread that has no request. A bit of Word is set: by the kernel, for a request that the thread is to see; a queue is
// not empty: of answers that the kernel has not passed on, or of requests that the thread has not seen. nil: there is no such thing. Or FD can be read: there is a request
// that no thread has taken yet; 0: there is no such descriptor. Then
// Relief is rung when the thread has been at one request for a lap and another one waits, or when it loses the policy in the middle of one: nobody else
// may be there to take requests. Bound is where the thread is bound: when it loses the policy it is let go, since beside a real-time program, say, it would hardly ever run
// there; it may bind itself again. nil: it stays there.
type Due struct {
	Word   *uint32
	Mask   uint32
	FD     int32
	Queues [2]Queue
	Relief *Bell
	Bound  *affinity.Thread
}

// Queue is a ring's head and tail, which are equal if it is empty.
type Queue struct{ Head, Tail *uint32 }

// Bell is rung by the guard.
type Bell struct{ rung atomic.Uint32 }

// Ring wakes who waits.
//
//go:nosplit
//go:norace
func (b *Bell) Ring() {
	b.rung.Add(1)
	futexWake(&b.rung)
}

// Wait returns when the bell has been rung more often than last, and how often. The first last is 0.
func (b *Bell) Wait(last uint32) uint32 {
	for {
		if n := b.rung.Load(); n != last {
			return n
		}
		unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&b.rung)), thread.FutexWait, uintptr(last), 0, 0, 0)
	}
}

// pollFD is struct pollfd of poll(2).
type pollFD struct {
	_ structs.HostLayout

	fd              int32
	events, revents int16
}

// atOnce is a timeout that has passed.
var atOnce unix.Timespec

// now says whether somebody waits.
//
//go:nosplit
//go:norace
func (d *Due) now() bool {
	if d.FD != 0 {
		ask := pollFD{fd: d.FD, events: unix.POLLIN}
		n, _, errno := thread.Call(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&ask)), 1, uintptr(unsafe.Pointer(&atOnce)), 0, 0, 0)
		return errno == 0 && n > 0
	}
	for i := range d.Queues {
		if q := &d.Queues[i]; q.Head != nil && atomic.LoadUint32(q.Head) != atomic.LoadUint32(q.Tail) {
			return true
		}
	}
	return d.Word != nil && atomic.LoadUint32(d.Word)&d.Mask != 0
}

// States of a slot. A thread moves it from normal to entering, to idle, and back. The guard moves it from idle to returning, and to normal or back to idle:
// while it is returning the thread does not leave the group.
const (
	unused    = iota
	normal    // the thread has the group's policy
	entering  // it asks for SCHED_IDLE, and may have it already
	idle      // it has SCHED_IDLE
	returning // the guard looks closer, and may give it the group's policy
)

// New makes a group for as many threads as may be in it at once. The error says why this process cannot have one.
func New(threads int) (*Group, error) {
	// A thread of its own, which ends: what is tried must not stay with one that others use.
	type result struct {
		policy int
		err    error
	}
	tried := make(chan result)
	go func() {
		runtime.LockOSThread()
		policy, err := try()
		tried <- result{policy, err}
	}()
	r := <-tried
	if r.err != nil {
		return nil, r.err
	}
	g := &Group{policy: r.policy, slots: make([]slot, threads), stopped: make(chan struct{})}
	go g.guard()
	return g, nil
}

// try gives the calling thread SCHED_IDLE and takes it back, which takes CAP_SYS_NICE or a RLIMIT_NICE of 20 less its nice value. The process must keep
// that.
func try() (policy int, err error) {
	policy, err = getPolicy()
	if err != nil {
		return 0, os.NewSyscallError("sched_getscheduler", err)
	}
	if p := policy &^ resetOnFork; p != unix.SCHED_NORMAL && p != unix.SCHED_BATCH {
		return 0, fmt.Errorf("the process has the policy %d already, which it keeps", p)
	}
	nice, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		return 0, os.NewSyscallError("getpriority", err)
	}
	if nice > normalNice {
		return 0, errors.New("the process has a nice value below 0: its threads are to run before others")
	}
	if err := OwnProc(); err != nil {
		return 0, err
	}
	if _, err := os.ReadFile("/proc/thread-self/schedstat"); err != nil {
		return 0, err
	}
	if err := keepIOClass(); err != nil {
		return 0, err
	}
	if errno := setPolicy(0, unix.SCHED_IDLE|policy&resetOnFork); errno != 0 {
		return 0, os.NewSyscallError("sched_setscheduler", errno)
	}
	if errno := setPolicy(0, policy); errno != 0 {
		return 0, fmt.Errorf("a thread may not leave SCHED_IDLE without CAP_SYS_NICE or a limit on nice values (ulimit -e) of 20: %w", os.NewSyscallError("sched_setscheduler", errno))
	}
	return policy, nil
}

// Close ends the guard. No thread may be in the group any more.
func (g *Group) Close() {
	g.stop.Do(func() {
		g.stopping.Store(1)
		g.active.Add(1)
		futexWake(&g.active)
	})
	<-g.stopped
}

// Stats are of a group's threads.
type Stats struct {
	Now    int    `json:"now"`    // how many have SCHED_IDLE
	Times  uint64 `json:"times"`  // how often one got it
	Pauses uint64 `json:"pauses"` // how often one lost it since others kept it from running
	Left   uint64 `json:"left"`   // how often one gave it up before it did what may have threads begin
}

// Stats counts.
func (g *Group) Stats() Stats {
	s := Stats{Times: g.idles.Load(), Pauses: g.pauses.Load(), Left: g.left.Load()}
	for i := range g.slots {
		if g.slots[i].state.Load() == idle {
			s.Now++
		}
	}
	return s
}

func getPolicy() (int, error) {
	p, _, errno := unix.RawSyscall(unix.SYS_SCHED_GETSCHEDULER, 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(p), nil
}
