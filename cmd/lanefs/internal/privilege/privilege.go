// Package privilege takes from a running process, in every thread, the capabilities it needs no more, and the way to get
// others.
//
// On Linux capabilities belong to a thread, and a thread changes only its own. Go's syscall.AllThreadsSyscall refuses where threads
// exist that Go did not make, as GPU runtimes make them. So the package does what the C library does for setuid(2): it sends each
// thread a signal, whose handler makes the calls. That signal, 33, is the one that neither Go nor glibc ever blocks. The handler (handler_linux_amd64.s, handler_linux_arm64.s) makes three system calls and nothing else; it
// needs no Go stack, so that it runs on any thread.
package privilege

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Set is a set of capabilities, bit n being capability n of capabilities(7).
type Set uint64

// Of makes a set out of unix.CAP_… numbers.
func Of(caps ...int) (s Set) {
	for _, c := range caps {
		s |= 1 << c
	}
	return s
}

func (s Set) String() string {
	return fmt.Sprintf("%d capabilities (%#x)", bits.OnesCount64(uint64(s)), uint64(s))
}

// State is what one thread may do.
type State struct {
	Permitted, Effective, Inheritable, Ambient Set
	NoNewPrivs                                 bool // exec never gives more than there is
	IOFlusher                                  bool // what it allocates waits for no file system (PR_SET_IO_FLUSHER, prctl(2))
}

// within says that a thread has nothing beyond keep and cannot get more.
func (s State) within(keep Set, r refused) bool {
	return (r.capset != nil || (s.Permitted|s.Effective|s.Inheritable|s.Ambient)&^keep == 0) && (r.noNewPrivs != nil || s.NoNewPrivs)
}

// refused is what a thread is not allowed to give up, nil where it is. A filter of system calls (seccomp) is the same for all threads.
type refused struct{ capset, noNewPrivs error }

func (r refused) err() error {
	if err := errors.Join(r.capset, r.noNewPrivs); err != nil {
		return fmt.Errorf("a filter of system calls forbids it (a container's?): %w", err)
	}
	return nil
}

// ioWorker is PF_IO_WORKER (include/linux/sched.h): a thread of the kernel's that carries out what an io_uring of the process cannot do at once. The last
// of a ring stays as long as that. It runs no code of the process, takes no signal, and each request has the credentials of who submitted it
// (io_prep_async_work), so what its status shows is of no consequence.
const ioWorker = 0x10

// ioFlusher is PF_MEMALLOC_NOIO and PF_LOCAL_THROTTLE, which PR_SET_IO_FLUSHER sets (kernel/sys.c).
const ioFlusher = 0x00080000 | 0x00100000

// taskFlags reads the flags in proc_pid_stat(5): the ninth field, of which the second, a name in parentheses, may contain anything. 0: there are none.
func taskFlags(stat string) uint64 {
	after := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(after) < 7 {
		return 0
	}
	flags, err := strconv.ParseUint(after[6], 10, 64)
	if err != nil {
		return 0
	}
	return flags
}

// Threads reads the state of every thread of a process that runs its code.
func Threads(pid int) (map[int]State, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "task")
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	all := map[int]State{}
	for _, e := range list {
		tid, err := strconv.Atoi(e.Name())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
		stat, _ := os.ReadFile(filepath.Join(dir, e.Name(), "stat"))
		flags := taskFlags(string(stat))
		if flags&ioWorker != 0 {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, e.Name(), "status"))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			return nil, err
		}
		s, err := parseStatus(string(b))
		if err != nil {
			return nil, fmt.Errorf("%s/%d/status: %w", dir, tid, err)
		}
		s.IOFlusher = flags&ioFlusher == ioFlusher
		all[tid] = s
	}
	return all, nil
}

// parseStatus reads the lines of proc_pid_status(5) that matter here.
func parseStatus(text string) (s State, err error) {
	sets := map[string]*Set{"CapPrm": &s.Permitted, "CapEff": &s.Effective, "CapInh": &s.Inheritable, "CapAmb": &s.Ambient}
	found := 0
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		value = strings.TrimSpace(value)
		if to := sets[name]; to != nil {
			n, err := strconv.ParseUint(value, 16, 64)
			if err != nil {
				return s, fmt.Errorf("%s: %w", name, err)
			}
			*to = Set(n)
			found++
		} else if name == "NoNewPrivs" {
			s.NoNewPrivs = value == "1"
			found++
		}
	}
	if found != len(sets)+1 {
		return s, fmt.Errorf("%d of %d lines are missing", len(sets)+1-found, len(sets)+1)
	}
	return s, nil
}

// Drop looks so often, and waits for so long between. It does not look at the clock: that goes on while the process is stopped or frozen.
var dropLooks = 30_000

const dropPoll = time.Millisecond

// Drop takes every capability outside keep from all threads, and sets no_new_privs in them. Before, a thread that has CAP_SYS_RESOURCE becomes an I/O flusher, as do those that it makes: what it
// allocates does not wait for file systems whose data it may be about to store, and what it writes is held up for the device that it writes to, not for all (PR_SET_IO_FLUSHER). Drop returns when that is so; what the threads are not allowed to give up
// they keep, which is the error. After an error of another kind the handler stays: a thread that
// was asked may take the signal later, and glibc's would end the process, which has no such call under way.
// One call at a time.
func Drop(keep Set) error {
	restore, err := install(keep)
	if err != nil {
		return fmt.Errorf("dropping privileges: %w", err)
	}
	runtime.LockOSThread()
	r := here()
	runtime.UnlockOSThread()
	if err := drop(keep, r); err != nil {
		return err
	}
	return errors.Join(restore(), r.err())
}

// drop asks every thread that is not within keep. A thread made meanwhile has what its maker had: once a look finds all
// within keep without having asked any, there is no maker left that had more.
func drop(keep Set, r refused) error {
	pid := os.Getpid()
	asked := map[int]bool{}
	for looks := 1; ; looks++ {
		all, err := Threads(pid)
		if err != nil {
			return err
		}
		var left []string
		for tid, s := range all {
			if s.within(keep, r) {
				continue
			}
			left = append(left, strconv.Itoa(tid))
			if !asked[tid] {
				if err := unix.Tgkill(pid, tid, signal); err != nil && err != unix.ESRCH {
					return os.NewSyscallError("tgkill", err)
				}
				asked[tid] = true
			}
		}
		if len(left) == 0 {
			return nil
		}
		if looks == dropLooks {
			return fmt.Errorf("dropping privileges: threads %s have kept theirs for %v", strings.Join(left, ", "), time.Duration(looks)*dropPoll)
		}
		time.Sleep(dropPoll)
	}
}
