package devfuse

import (
	"strconv"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// program is whether one program works at a time, and where it runs.
type program struct {
	cpu atomic.Int32 // where it ran when that was last asked; or anywhere: several programs work, or their requests are large

	mu     sync.Mutex
	recent [4]uint32 // threads that made the last requests, the last one first
	n      int       // requests since the last look
	mixed  int       // of these, those by which one program at a time was not to be told: see saw
	asked  int       // n when /proc was last asked
	buf    [512]byte
}

const (
	anywhere = -1
	maxCPUs  = 1024 // as many as a unix.CPUSet has

	look      = 32       // requests between looks
	lookSoon  = 4        // requests after which a new thread is looked at
	mostMixed = look / 4 // of them
	largeData = 64 << 10 // bytes of a request or an answer: the kernel reads and writes ahead, and more CPUs than one are of use
)

// saw takes note of a request of a thread, 0 for the kernel. alone says that no other request is under way, and that it is small. Programs that work at
// the same time are told by requests that are under way together, and by threads that take turns: one that has made none of the last requests is most
// likely a child of the one before, which waits for it.
func (p *program) saw(r *reader, thread uint32, alone bool) {
	if r.idle == nil || thread == 0 {
		return
	}
	if !p.mu.TryLock() {
		return // another request is just taken note of
	}
	defer p.mu.Unlock()
	p.n++
	at := p.find(thread)
	fresh := at < 0
	if at > 0 || !alone {
		p.mixed++
	}
	if fresh {
		at = len(p.recent) - 1
	}
	copy(p.recent[1:at+1], p.recent[:at])
	p.recent[0] = thread
	if p.n < look && !(fresh && p.cpu.Load() != anywhere && p.n-p.asked >= lookSoon) {
		return
	}
	if p.mixed > mostMixed {
		p.cpu.Store(anywhere)
	} else if cpu, ok := p.runsOn(thread); ok && r.allowed.IsSet(int(cpu)) {
		p.cpu.Store(cpu)
		p.asked = p.n
	}
	if p.n >= look {
		p.n, p.mixed, p.asked = 0, 0, 0
	}
}

func (p *program) find(thread uint32) int {
	for i, t := range p.recent {
		if t == thread {
			return i
		}
	}
	return -1
}

// runsOn asks /proc for the CPU of a thread, which waits. It allocates nothing.
func (p *program) runsOn(thread uint32) (int32, bool) {
	path := strconv.AppendUint(append(p.buf[:0], "/proc/"...), uint64(thread), 10)
	path = append(path, "/stat\x00"...)
	fd, _, errno := unix.Syscall6(unix.SYS_OPENAT, ^uintptr(99), uintptr(unsafe.Pointer(&path[0])), unix.O_RDONLY|unix.O_CLOEXEC, 0, 0, 0) // AT_FDCWD
	if errno != 0 {
		return 0, false
	}
	n, _, errno := unix.Syscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(&p.buf[0])), uintptr(len(p.buf)))
	unix.Close(int(fd))
	if errno != 0 {
		return 0, false
	}
	return processor(p.buf[:n])
}

// processor is the 39th number of a line of /proc/PID/stat (proc(5)). The second is the program's name in parentheses, which may have any bytes.
func processor(line []byte) (int32, bool) {
	i := len(line) - 1
	for i >= 0 && line[i] != ')' {
		i--
	}
	if i < 0 {
		return 0, false
	}
	field, n, digits := 2, int32(0), 0
	for _, c := range line[i+1:] {
		switch {
		case c == ' ' || c == '\n':
			if field == 39 {
				return n, digits > 0
			}
			field++
		case field == 39:
			if c < '0' || c > '9' || digits == 4 {
				return 0, false
			}
			n, digits = 10*n+int32(c-'0'), digits+1
		}
	}
	return n, field == 39 && digits > 0
}

// place has the thread run where the program does.
func (r *reader) place() {
	want := r.t.program.cpu.Load()
	if want == r.on || r.idle == nil {
		return
	}
	if want == anywhere {
		r.leave()
		return
	}
	r.heed()
	if !r.allowed.IsSet(int(want)) {
		r.leave()
		return
	}
	if r.on != anywhere {
		r.idle.Leave()
	}
	var set unix.CPUSet
	set.Set(int(want))
	if unix.SchedSetaffinity(0, &set) != nil {
		return
	}
	r.on = want
	r.idle.On(&r.t.sched[want])
}

// leave has the thread run wherever it may.
func (r *reader) leave() {
	if r.on == anywhere {
		return
	}
	r.idle.Leave()
	r.heed()
	_ = unix.SchedSetaffinity(0, &r.allowed)
	r.on = anywhere
}

// heed takes what the thread was given from outside (taskset -p, a cpuset), if it has not what it gave itself, for what is allowed.
func (r *reader) heed() {
	var now unix.CPUSet
	if unix.SchedGetaffinity(0, &now) != nil {
		return
	}
	left := r.allowed
	if r.on != anywhere {
		left = unix.CPUSet{}
		left.Set(int(r.on))
	}
	if now != left {
		r.allowed = now
	}
}
