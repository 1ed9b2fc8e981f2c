package share

import (
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// Limits of what one user can tie up. Root, and whose daemon it is, are held to none of these, but to a connection's own limits and
// to those of all users together. A field that is 0 gets its default.
type Limits struct {
	Connections int   `json:"connections"`
	Descriptors int   `json:"descriptors"` // of the daemon's
	Rings       int   `json:"rings"`
	Handles     int   `json:"handles"`    // files, mappings and registered memory together
	Registered  int64 `json:"registered"` // bytes of programs' own memory, which the daemon maps: its address space, and pages that it may touch
	Shared      int64 `json:"shared"`     // bytes of rings and notice boards
	Held        int64 `json:"held"`       // bytes of the pool that are mapped or private
}

// A connection's own limits, root's too.
const (
	maxFiles    = 1024
	maxMemories = 256
	maxRings    = 8
)

// maxRegistered is what all users together may have registered, root too: of the 128 TiB that a process has on amd64, Go's runtime
// and the GPU's need some.
const maxRegistered = int64(1) << 45

// withDefaults fills in what is not said, for a daemon whose pool has pool bytes.
func (l Limits) withDefaults(pool int64) (Limits, error) {
	var memory unix.Sysinfo_t
	if err := unix.Sysinfo(&memory); err != nil {
		return l, fmt.Errorf("sysinfo: %w", err)
	}
	files := descriptorLimit()
	set := func(n *int, to int) {
		if *n == 0 {
			*n = to
		}
	}
	set(&l.Connections, 256)
	set(&l.Descriptors, min(max(files/8, 256), 4096))
	set(&l.Rings, 256)
	set(&l.Handles, 1<<16)
	if l.Registered == 0 {
		// Pages of it count as the daemon's once it has touched them, also where memory is short.
		l.Registered = max(int64(memory.Totalram)*int64(memory.Unit)/4, pool)
	}
	if l.Shared == 0 {
		l.Shared = 256 << 20
	}
	if l.Held == 0 {
		l.Held = pool / 2
	}
	return l, nil
}

// descriptorLimit is how many descriptors the daemon may have; Go has raised it as far as it can be.
func descriptorLimit() int {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 1024
	}
	return int(min(r.Cur, math.MaxInt32))
}
