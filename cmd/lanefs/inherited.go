package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"

	"golang.org/x/sys/unix"
)

// What a daemon inherits from the shell that starts it is meant for the programs of that shell.

// shedInherited takes a usual umask, so that a user's commands reach the daemon's files, and other users its socket, and raises soft limits that would
// end a daemon or fail its writes. Writes to a log whose reader has gone fail like others: Go's runtime ends a program that writes to such a stderr.
func shedInherited() {
	unix.Umask(0o022)
	raiseLimits()
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
}

// raiseLimits raises soft limits: of a file's size, beyond which the image would not be written, of a process's time on the CPU, and of its memory. The
// command that starts a daemon calls it too, for Go's runtime takes memory before the daemon's first line.
func raiseLimits() {
	for _, what := range []int{unix.RLIMIT_FSIZE, unix.RLIMIT_CPU, unix.RLIMIT_AS, unix.RLIMIT_DATA} {
		var limit unix.Rlimit
		if unix.Getrlimit(what, &limit) == nil && limit.Cur < limit.Max {
			_ = unix.Setrlimit(what, &unix.Rlimit{Cur: limit.Max, Max: limit.Max}) // what stays is the limit then
		}
	}
}

// limitOfMemory says how much memory this process may have; empty if there is no limit of its own.
func limitOfMemory() string {
	least := uint64(unix.RLIM_INFINITY)
	for _, what := range []int{unix.RLIMIT_AS, unix.RLIMIT_DATA} {
		var limit unix.Rlimit
		if unix.Getrlimit(what, &limit) == nil {
			least = min(least, limit.Cur)
		}
	}
	if least == unix.RLIM_INFINITY {
		return ""
	}
	return fmt.Sprintf("may have %d MiB of memory: raise that limit (ulimit -v and -d, or LimitAS and LimitDATA of a unit)", least>>20)
}

// limitOfTime says that the daemon will be killed by a hard limit; empty if there is none.
func limitOfTime(dir string) string {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_CPU, &limit) != nil || limit.Cur == unix.RLIM_INFINITY {
		return ""
	}
	return fmt.Sprintf("the kernel kills the daemon of %q after %d s on the CPU: mount it without that limit (ulimit -t unlimited, or LimitCPU of a unit)", dir, limit.Cur)
}

// limitWords are the words for an error that a limit of the process, or of its control group, is the reason of, or that /proc is missing, with the remedy.
func limitWords(err error) string {
	var p *os.PathError
	switch {
	case errors.Is(err, unix.EMFILE):
		var limit unix.Rlimit
		_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
		return fmt.Sprintf(": the limit is %d, raise it (ulimit -n, or LimitNOFILE of a unit)", limit.Cur)
	case errors.Is(err, unix.EFBIG):
		var limit unix.Rlimit
		if unix.Getrlimit(unix.RLIMIT_FSIZE, &limit) == nil && limit.Cur != unix.RLIM_INFINITY {
			return fmt.Sprintf(": the limit of a file's size is %d bytes, raise it (ulimit -f, or LimitFSIZE of a unit)", limit.Cur)
		}
	case errors.As(err, &p) && p.Op == "fork/exec" && errors.Is(err, unix.EAGAIN):
		return ": " + moreThreads()
	case errors.Is(err, unix.ENOMEM):
		if limit := limitOfMemory(); limit != "" {
			return ": this process " + limit
		}
	case errors.As(err, &p) && strings.HasPrefix(p.Path, "/proc/self/") && errors.Is(err, unix.ENOENT):
		return ": is /proc there? mount -t proc proc /proc"
	}
	return ""
}

// moreThreads is the remedy where no process or thread can be started. A thread has a stack, for which there may be no memory.
func moreThreads() string {
	if limit := limitOfMemory(); limit != "" {
		return "a process " + limit
	}
	return noMoreThreads
}

const noMoreThreads = "no more threads are allowed: raise pids.max of the control group (--pids-limit of a container, TasksMax of a unit), or ulimit -u"
