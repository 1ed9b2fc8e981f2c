package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// counters are what a process has used.
type counters struct {
	cpu      time.Duration
	switches map[string]int64 // context switches, voluntary or not, by thread
}

// cpuClock is the CPU-time clock of a process, threads that ended included, as clock_getcpuclockid(3) makes its number: the
// complement of the PID above three bits that say "of a process, in ns".
func cpuClock(pid int) int32 { return int32(^pid<<3 | 2) }

// readCounters reads those of a process; of none there are none.
func readCounters(pid int) (c counters, err error) {
	if pid == 0 {
		return c, nil
	}
	var t unix.Timespec
	if err := unix.ClockGettime(cpuClock(pid), &t); err != nil {
		return c, fmt.Errorf("CPU time of process %d: %w", pid, err)
	}
	c.cpu, c.switches = time.Duration(t.Nano()), map[string]int64{}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, dir := range threads {
		status, err := os.ReadFile(dir + "/status")
		if err != nil {
			continue // it has ended
		}
		c.switches[dir] = contextSwitches(status)
	}
	return c, err
}

// contextSwitches sums both kinds in a /proc/PID/status.
func contextSwitches(status []byte) (n int64) {
	for line := range bytes.Lines(status) {
		key, value, _ := bytes.Cut(line, []byte(":"))
		if bytes.HasSuffix(key, []byte("voluntary_ctxt_switches")) {
			v, _ := strconv.ParseInt(string(bytes.TrimSpace(value)), 10, 64)
			n += v
		}
	}
	return n
}

// since is what was used between before and c. A thread that has ended in between counts for nothing, a new one in full, as does one that
// has the number of one that ended.
func (c counters) since(before counters) (cpu time.Duration, switches int64) {
	for thread, n := range c.switches {
		if had := before.switches[thread]; had <= n {
			n -= had
		}
		switches += n
	}
	return c.cpu - before.cpu, switches
}

// resident is a process's resident memory in bytes.
func resident(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	f := bytes.Fields(b)
	if len(f) < 2 {
		return 0, fmt.Errorf("statm of process %d: %q", pid, b)
	}
	pages, err := strconv.ParseInt(string(f[1]), 10, 64)
	return pages * int64(os.Getpagesize()), err
}
