package share

import (
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// Limits of one user. They do not apply to root and the user of the daemon; the limits of a connection and those of all users together
// do. A field of 0 means the default.
type Limits struct {
	Connections int   `json:"connections"`
	Descriptors int   `json:"descriptors"` // of the daemon
	Rings       int   `json:"rings"`
	Handles     int   `json:"handles"`    // files, mappings and registered memory together
	Registered  int64 `json:"registered"` // bytes of programs' own memory, which the daemon maps
	Shared      int64 `json:"shared"`     // bytes of rings and notice boards
	Held        int64 `json:"held"`       // bytes of the pool that are mapped or private
}

// Limits of one connection, also of root.
const (
	maxFiles    = 1024
	maxMemories = 256
	maxRings    = 8
)

// maxRegistered is the limit of registered bytes of all users together, root included. A process has 128 TiB of addresses on amd64, of
// which the runtimes of Go and the GPU need a part.
const maxRegistered = int64(1) << 45

// withDefaults returns the limits with defaults for fields that are 0. pool is the size of the pool in bytes.
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
		// Pages count as the daemon's memory once it has touched them.
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

// descriptorLimit returns how many descriptors the daemon may have. Go has raised the soft limit to the hard one.
func descriptorLimit() int {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 1024
	}
	return int(min(r.Cur, math.MaxInt32))
}
