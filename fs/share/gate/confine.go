package gate

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/seccomp"
)

// limits of the process's resources: it writes no file and no core dump.
var limits = map[int]uint64{unix.RLIMIT_CORE: 0, unix.RLIMIT_FSIZE: 0, unix.RLIMIT_MEMLOCK: 0, unix.RLIMIT_MSGQUEUE: 0}

// maxFiles is the limit of descriptors, if it can be raised that far. It must be enough for the messages of all users and for
// descriptors that are slow to close.
const maxFiles = 1 << 18

// confine gives up all capabilities, in all threads, and every descriptor that the process was not given. To do that it executes this
// program once more. If a step fails the process serves nevertheless, and the error is logged.
func confine() error {
	var errs []error
	try := func(what string, err error) {
		if err != nil {
			errs = append(errs, os.NewSyscallError(what, err))
		}
	}
	var have unix.Rlimit
	try("getrlimit", unix.Getrlimit(unix.RLIMIT_NOFILE, &have))
	raised := unix.Rlimit{Cur: max(maxFiles, have.Max), Max: max(maxFiles, have.Max)}
	if unix.Setrlimit(unix.RLIMIT_NOFILE, &raised) != nil { // no privilege, or more than the system allows
		try("setrlimit", unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: have.Max, Max: have.Max}))
	}
	for what, n := range limits {
		try("setrlimit", unix.Setrlimit(what, &unix.Rlimit{Cur: n, Max: n}))
	}
	try("PR_SET_NO_NEW_PRIVS", unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	try("capset", unix.Capset(&h, &none[0]))
	try("close_range", unix.CloseRange(firstFree, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC))
	// exec takes this thread's capabilities for the whole process, and gives none back. RunIfChild has locked the goroutine to it.
	os.Setenv(confined, joined(errs))
	try("exec", unix.Exec("/proc/self/exe", os.Args, os.Environ()))
	return errors.Join(errs...)
}

func joined(errs []error) string {
	if err := errors.Join(errs...); err != nil {
		return strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return ""
}

// calls returns the allowed system calls: those of Go's runtime, of sockets, and queries about descriptors that need no request to a file
// system. The process opens no file, starts no process, and connects nowhere.
func calls() seccomp.Filter {
	f := seccomp.Filter{}
	for _, nr := range []uintptr{
		// Go's memory, threads, timers and poller.
		unix.SYS_MUNMAP, unix.SYS_MADVISE, unix.SYS_FUTEX, unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP,
		unix.SYS_CLOCK_GETTIME, unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY, unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK,
		unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK, unix.SYS_GETTID, unix.SYS_GETPID, unix.SYS_EXIT, unix.SYS_EXIT_GROUP,
		unix.SYS_RESTART_SYSCALL, unix.SYS_GETRANDOM, unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EVENTFD2,
		unix.SYS_PIPE2, unix.SYS_MINCORE, unix.SYS_SET_ROBUST_LIST, unix.SYS_UNAME,
		unix.SYS_BRK, unix.SYS_RSEQ, // threads of a libc, in a build with cgo
		// Sockets.
		unix.SYS_READ, unix.SYS_WRITE, unix.SYS_CLOSE, unix.SYS_ACCEPT4, unix.SYS_RECVMSG, unix.SYS_SENDMSG, unix.SYS_SHUTDOWN,
		unix.SYS_GETSOCKOPT, unix.SYS_SETSOCKOPT, unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME, unix.SYS_PPOLL,
		// Queries about descriptors.
		unix.SYS_STATX, unix.SYS_READLINKAT, unix.SYS_FSTAT,
	} {
		f[nr] = seccomp.Rule{}
	}
	f[unix.SYS_MMAP] = seccomp.Rule{Arg: 2, Clear: unix.PROT_EXEC}
	f[unix.SYS_MPROTECT] = seccomp.Rule{Arg: 2, Clear: unix.PROT_EXEC}
	f[unix.SYS_CLONE] = seccomp.Rule{Arg: 0, Needed: unix.CLONE_THREAD | unix.CLONE_VM}
	f[unix.SYS_TGKILL] = seccomp.Rule{Arg: 0, Only: []uint32{uint32(os.Getpid())}}
	f[unix.SYS_SOCKETPAIR] = seccomp.Rule{Arg: 0, Only: []uint32{unix.AF_UNIX}}
	f[unix.SYS_PRCTL] = seccomp.Rule{Arg: 0, Only: []uint32{unix.PR_SET_VMA}}
	f[unix.SYS_FCNTL] = seccomp.Rule{Arg: 1, Only: []uint32{unix.F_GETFL, unix.F_SETFL, unix.F_GETFD, unix.F_SETFD, unix.F_DUPFD_CLOEXEC, unix.F_GET_SEALS}}
	return f
}

// restrict installs the filter of system calls. It is called when all descriptors are open.
func restrict() error {
	if err := seccomp.Allow(calls()); err != nil {
		return fmt.Errorf("on %s: %w", runtime.GOARCH, err)
	}
	return nil
}

// gpuMajors returns the major numbers of character devices whose descriptors may be GPU memory.
func gpuMajors() map[uint32]bool {
	all := map[uint32]bool{}
	b, err := os.ReadFile("/proc/devices")
	if err != nil {
		return all
	}
	chars, _, _ := bytes.Cut(b, []byte("Block devices:"))
	for line := range bytes.Lines(chars) {
		var major uint32
		var name string
		if n, _ := fmt.Sscan(string(line), &major, &name); n == 2 &&
			(strings.HasPrefix(name, "nvidia") || name == "kfd" || name == "drm") {
			all[major] = true
		}
	}
	return all
}
