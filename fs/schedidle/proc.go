package schedidle

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/affinity"
	"github.com/lanefs/lanefs/gpu/thread"
)

// taskPath is a file of a thread's in /proc, with a zero byte at its end.
type taskPath [48]byte

// pathOf is below /task: else a file may be of all threads of the program.
func pathOf(thread uint32, file string) (p taskPath) {
	b := strconv.AppendUint(append(p[:0], "/proc/"...), uint64(thread), 10)
	b = strconv.AppendUint(append(b, "/task/"...), uint64(thread), 10)
	_ = append(append(b, '/'), file...) // in place; the rest of p is zero
	return p
}

// OwnProc says why the numbers of threads in /proc are not those of this process's PID namespace; nil: they are.
func OwnProc() error {
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		return fmt.Errorf("/proc is not that of this process's PID namespace: /proc/self is %q (%v)", self, err)
	}
	return nil
}

// RunsOn asks for the CPU of a thread, on which it runs or has run last; affinity.Nowhere if it is a real-time program's: one that waits for an answer without sleeping (io_getevents, a ring)
// must not keep the thread that answers from running. It allocates nothing. It may wait: the kernel holds the memory of the thread's program
// meanwhile, and if the program ends just then, gives it back here, which waits for the program's asynchronous reads and writes (exit_aio).
func RunsOn(thread uint32) (cpu int, ok bool) {
	path := pathOf(thread, "stat")
	fd, _, errno := unix.Syscall6(unix.SYS_OPENAT, atFDCWD, uintptr(unsafe.Pointer(&path)), unix.O_RDONLY|unix.O_CLOEXEC, 0, 0, 0)
	if errno != 0 {
		return 0, false
	}
	var buf [512]byte
	n, _, errno := unix.Syscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(&buf)), uintptr(len(buf)))
	unix.Close(int(fd))
	if errno != 0 {
		return 0, false
	}
	return processor(buf[:n])
}

// RealTime says whether a thread of this PID namespace is a real-time program's (SCHED_FIFO, SCHED_RR, SCHED_DEADLINE), which may wait for an answer without sleeping. It does not wait, and
// says no of a thread that is not there.
func RealTime(thread uint32) bool {
	if thread == 0 {
		return false // it is not known, or the kernel itself; to the system call it would be the caller
	}
	p, _, errno := unix.RawSyscall(unix.SYS_SCHED_GETSCHEDULER, uintptr(thread), 0, 0)
	switch int(p) &^ resetOnFork {
	case unix.SCHED_FIFO, unix.SCHED_RR, unix.SCHED_DEADLINE:
		return errno == 0
	}
	return false
}

// processor is the 39th field of a line of /proc/PID/stat (proc(5)), counted from 1, or Nowhere where the 40th, the real-time priority, is not 0, or the policy, which follows, is
// SCHED_DEADLINE. The second is the program's name in parentheses, which may have any bytes.
func processor(line []byte) (int, bool) {
	line = line[bytes.LastIndexByte(line, ')')+1:]
	cpu, ok := number(line, 39-3)
	if priority, ok := number(line, 40-3); ok && priority != 0 {
		return affinity.Nowhere, true
	}
	if policy, ok := number(line, 41-3); ok && policy == unix.SCHED_DEADLINE {
		return affinity.Nowhere, true
	}
	return int(cpu), ok
}

// runs says whether a thread runs or would, if it had a CPU: the first field behind its name in parentheses, which may have any bytes.
//
//go:nosplit
//go:norace
func (p *taskPath) runs() bool {
	var buf [80]byte
	name, running := false, false
	for i, c := range buf[:p.read(unsafe.Pointer(&buf), len(buf))] {
		if c == ')' && i+2 < len(buf) {
			name, running = true, buf[i+2] == 'R'
		}
	}
	return name && running
}

// times says for how long a thread has run, and for how long others have kept it from running: the first two numbers of its schedstat, in ns.
//
//go:nosplit
//go:norace
func (p *taskPath) times() (ran, kept time.Duration, ok bool) {
	var buf [80]byte
	n := p.read(unsafe.Pointer(&buf), len(buf))
	r, ok1 := number(buf[:n], 0)
	k, ok2 := number(buf[:n], 1)
	return time.Duration(r), time.Duration(k), ok1 && ok2
}

const atFDCWD = ^uintptr(99) // AT_FDCWD, -100

// read returns how many bytes there are, 0 if the file cannot be read. Of another program it must be none for which the kernel holds that one's memory (see RunsOn): schedstat is none.
//
//go:nosplit
//go:norace
func (p *taskPath) read(buf unsafe.Pointer, size int) int {
	fd, _, errno := thread.Call(unix.SYS_OPENAT, atFDCWD, uintptr(unsafe.Pointer(p)), unix.O_RDONLY|unix.O_CLOEXEC, 0, 0, 0)
	if errno != 0 {
		return 0
	}
	n, _, errno := thread.Call(unix.SYS_READ, fd, uintptr(buf), uintptr(size), 0, 0, 0)
	thread.Call(unix.SYS_CLOSE, fd, 0, 0, 0, 0, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}

// number is one of numbers with a space before or between them, and the end of a line or a space behind.
//
//go:nosplit
func number(line []byte, which int) (n int64, ok bool) {
	digits := 0
	for i, c := range line {
		switch {
		case c == ' ' && i == 0:
		case c == ' ' || c == '\n':
			if which == 0 {
				return n, digits > 0
			}
			which--
		case which != 0:
		case c < '0' || c > '9' || digits == 18:
			return 0, false
		default:
			n, digits = 10*n+int64(c-'0'), digits+1
		}
	}
	return 0, false
}
