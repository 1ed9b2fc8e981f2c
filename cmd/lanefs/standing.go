package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/moby/sys/mountinfo"
)

// daemonComm is what a daemon is called, whatever its program's name is.
const daemonComm = "lanefs\n"

// standing says of a daemon that does not answer that it is stopped, by a signal or a debugger, and what has it go on; empty if it is not, or that is
// not known. It is the end of a sentence (proc_pid_stat(5), state).
func standing(pid int) string {
	comm, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "comm"))
	stat, err2 := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	own, err3 := os.ReadFile("/proc/self/comm")
	if err != nil || err2 != nil || err3 != nil || (!bytes.Equal(comm, own) && string(comm) != daemonComm) { // the number is that of another process: of another PID namespace, or since the daemon's end
		return ""
	}
	_, rest, _ := bytes.Cut(stat, append(bytes.TrimSpace(comm), ") "...))
	switch {
	case bytes.HasPrefix(rest, []byte("T")):
		return fmt.Sprintf("; that process is stopped: kill -CONT %d has it go on", pid)
	case bytes.HasPrefix(rest, []byte("t")):
		return fmt.Sprintf("; process %d is held by a debugger", pid)
	}
	return ""
}

// standingOf is standing for the daemon of a mount.
func standingOf(m *mountinfo.Info) string {
	for _, s := range daemons() {
		if s.serves(m) {
			return standing(s.PID)
		}
	}
	return ""
}
