package schedidle

import (
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu/thread"
)

func (g *Group) guard() {
	runtime.LockOSThread() // for good: the thread ends with the goroutine
	defer close(g.stopped)
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, -20) // it does little, and others wait for it; where it may not, it goes without
	g.run()
}

// run looks at the threads every Lap, while any has SCHED_IDLE.
//
// When Go's garbage collector stops all threads, one with SCHED_IDLE beside a program that computes may hold it up: it has to run to
// notice. The guard must not be among those that wait, for it ends that. So it runs as code of C does: for the runtime it is in one long system call. It has no
// Go processor, allocates nothing, writes no pointers, and calls nothing that may grow the stack, which the linker checks (nosplit).
//
//go:nosplit
//go:norace
func (g *Group) run() {
	thread.Enter()
	lap := unix.Timespec{Nsec: int64(Lap)}
	for g.stopping.Load() == 0 {
		if g.active.Load() == 0 {
			thread.Call(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&g.active)), thread.FutexWait, 0, 0, 0, 0)
			continue
		}
		thread.Call(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&lap)), 0, 0, 0, 0, 0)
		lap.Nsec = int64(Lap)
		for i := range g.slots {
			if g.look(&g.slots[i]) {
				lap.Nsec = int64(shortLap)
			}
		}
	}
	thread.Leave()
}

// look gives a thread its old policy back if somebody waits for it and it did little in two laps, or if it has had little to do for many. It says whether
// the next lap should be short.
//
//go:nosplit
//go:norace
func (g *Group) look(s *slot) (again bool) {
	state := s.state.Load()
	if state != entering && state != idle {
		return false
	}
	taken := s.taken.Load()
	did := taken - s.last
	s.last = taken
	if s.fresh.Load() != 0 || did >= few {
		s.fresh.Store(0)
		s.laps = 0
		s.late.Store(0)
		return false
	}
	if state == entering {
		// It asks for SCHED_IDLE and goes no further. So it has it, and does not run.
		letGo(s)
		g.giveBack(s)
		return false
	}
	if !s.state.CompareAndSwap(idle, returning) {
		return false
	}
	s.laps++
	phase := s.phase.Load()
	busy := phase == answers
	due := s.due.now()
	if busy && due && did == 0 && s.due.Relief != nil {
		s.due.Relief.Ring()
	}
	late := busy || due || phase == asks && did == 0 && s.laps > 1 && s.files.stat.runs()
	if !late {
		s.late.Store(0)
	}
	if s.laps < quiet && (!late || s.late.Load() == 0) {
		if late {
			_, kept, _ := s.files.schedstat.times()
			s.kept.Store(int64(kept))
			s.late.Store(1)
		}
		s.state.Store(idle)
		return late
	}
	letGo(s)
	g.end(s)
	return false
}

// end ends SCHED_IDLE of a slot that the caller has made returning.
//
//go:nosplit
//go:norace
func (g *Group) end(s *slot) {
	g.giveBack(s)
	s.state.Store(normal)
	g.active.Add(^uint32(0))
	if s.due.Relief != nil && s.phase.Load() == answers {
		s.due.Relief.Ring()
	}
}

// letGo leaves alone what may run elsewhere than where it bound itself: somebody else has seen to that.
//
//go:nosplit
//go:norace
func letGo(s *slot) {
	if s.due.Bound == nil {
		return
	}
	var now unix.CPUSet
	if _, _, errno := thread.Call(unix.SYS_SCHED_GETAFFINITY, uintptr(s.tid), unsafe.Sizeof(now), uintptr(unsafe.Pointer(&now)), 0, 0, 0); errno != 0 {
		return
	}
	to, allowed := s.due.Bound.Set()
	if to < 0 {
		return
	}
	for i := range now {
		if to/64 == i {
			now[i] ^= 1 << (to % 64)
		}
		if now[i] != 0 {
			return
		}
	}
	thread.Call(unix.SYS_SCHED_SETAFFINITY, uintptr(s.tid), unsafe.Sizeof(*allowed), uintptr(unsafe.Pointer(allowed)), 0, 0, 0)
}

// giveBack leaves alone what has another policy: somebody else has given it that.
//
//go:nosplit
//go:norace
func (g *Group) giveBack(s *slot) {
	if p, _, errno := thread.Call(unix.SYS_SCHED_GETSCHEDULER, uintptr(s.tid), 0, 0, 0, 0, 0); errno == 0 && p&^resetOnFork != unix.SCHED_IDLE {
		return
	}
	if errno := setPolicy(s.tid, g.policy); errno != 0 {
		g.broken.Store(1)
	}
}

//go:nosplit
//go:norace
func setPolicy(tid int32, policy int) unix.Errno {
	var priority int32 // struct sched_param
	_, _, errno := thread.Call(unix.SYS_SCHED_SETSCHEDULER, uintptr(tid), uintptr(policy), uintptr(unsafe.Pointer(&priority)), 0, 0, 0)
	return errno
}

//go:nosplit
//go:norace
func futexWake(at *atomic.Uint32) {
	thread.Call(unix.SYS_FUTEX, uintptr(unsafe.Pointer(at)), thread.FutexWake, 1, 0, 0, 0)
}
