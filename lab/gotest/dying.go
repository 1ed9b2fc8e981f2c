package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A process that serves a FUSE file system and has a thread that waits for it does not end when it is killed: its threads that served have gone, the one that waits hears no
// signal, and keeps /dev/fuse open, so that the kernel does not end the connection (fs/fuse/dev.c, request_wait_answer). Behind it waits each sync(2) of the machine. A test that runs
// into its time limit, or is killed, can be such a process: LaneFS's own daemon has a gate that aborts its connection then, a test that mounts in its own process has not.
const (
	dyingPatience = 2 * time.Minute // a killed process may take long where much is to be written
	dyingLook     = 10 * time.Second
)

const sigkillPending = 1 << 8 // of a mask of signals in /proc/PID/status

// dying are the processes of which a thread has been killed and waits in the kernel nevertheless. root is where /proc is mounted.
func dying(root string) map[string]bool {
	all := map[string]bool{}
	threads, _ := filepath.Glob(filepath.Join(root, "[0-9]*/task/[0-9]*/status"))
	for _, name := range threads {
		text, _ := os.ReadFile(name)
		var state string
		var pending uint64
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			switch value = strings.TrimSpace(value); key {
			case "State":
				state = value
			case "SigPnd":
				pending, _ = strconv.ParseUint(value, 16, 64)
			}
		}
		if strings.HasPrefix(state, "D") && pending&sigkillPending != 0 {
			process, _, _ := strings.Cut(strings.TrimPrefix(name, root+"/"), "/")
			all[process] = true
		}
	}
	return all
}

// waiting are the FUSE connections that have requests without an answer. root is where fusectl is mounted.
func waiting(root string) (numbers []string) {
	all, _ := filepath.Glob(filepath.Join(root, "[0-9]*/waiting"))
	for _, name := range all {
		if text, err := os.ReadFile(name); err == nil && strings.TrimSpace(string(text)) != "0" {
			numbers = append(numbers, filepath.Base(filepath.Dir(name)))
		}
	}
	return numbers
}

// connections is where fusectl is mounted, if it is (Documentation/filesystems/fuse/fuse.rst, "Control filesystem").
const connections = "/sys/fs/fuse/connections"

// withConnections calls f while fusectl is mounted.
func withConnections(f func()) error {
	var st unix.Statfs_t
	if err := unix.Statfs(connections, &st); err != nil {
		return &os.PathError{Op: "statfs", Path: connections, Err: err}
	}
	if st.Type != fusectlMagic {
		if err := unix.Mount("fusectl", connections, "fusectl", 0, ""); err != nil {
			return os.NewSyscallError("mounting fusectl", err)
		}
		defer unix.Unmount(connections, unix.MNT_DETACH)
	}
	f()
	return nil
}

const fusectlMagic = 0x65735543 // fs/fuse/control.c

// freeDying aborts FUSE connections, those that which gives, when a process has been dying for longer than patience, and says so. It looks until stop is closed.
func freeDying(out io.Writer, which func() []string, patience, look time.Duration, stop <-chan struct{}) {
	since := map[string]time.Time{}
	t := time.NewTicker(look)
	defer t.Stop()
	for {
		select {
		case <-stop:
			return
		case <-t.C:
		}
		now := dying("/proc")
		for p := range since {
			if !now[p] {
				delete(since, p)
			}
		}
		for p := range now {
			if _, known := since[p]; !known {
				since[p] = time.Now()
			}
			if time.Since(since[p]) < patience {
				continue
			}
			since[p] = time.Now()
			var numbers []string
			err := withConnections(func() {
				numbers = which()
				for _, n := range numbers {
					_ = os.WriteFile(filepath.Join(connections, n, "abort"), []byte("1"), 0)
				}
			})
			says := strings.Join(numbers, ", ")
			if err != nil {
				says = err.Error()
			}
			fmt.Fprintf(out, "gotest: process %s was killed and waits in the kernel since %v; FUSE connections with requests that wait are aborted: %s\n", p, patience, says)
		}
	}
}
