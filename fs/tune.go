package fs

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Settings of the mount's backing device in sysfs (Documentation/ABI/testing/sysfs-class-bdi), which only root may
// change.
const readAheadKB = 4096 // four requests of 1 MiB; with the kernel's default of 128 KiB there would be eight times as many

// tune raises the mount's limits. If that fails the mount works, but is slower.
func (s *Server) tune() {
	if os.Geteuid() != 0 {
		return
	}
	var st unix.Stat_t
	if err := unix.Stat(s.dir, &st); err != nil {
		return
	}
	bdi := filepath.Join("/sys/class/bdi", fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)))
	set := func(name, value string) {
		if err := os.WriteFile(filepath.Join(bdi, name), []byte(value), 0); err != nil {
			s.opt.Log.Warn("fs: a setting of the mount stays as it is", "setting", name, "error", err)
		}
	}
	set("read_ahead_kb", fmt.Sprint(readAheadKB))
	if s.opt.WriteBack {
		// By default a FUSE mount may dirty 1 % of memory, under a strict limit.
		set("strict_limit", "0")
		set("max_ratio", "100")
	}
}

// Readers is how many threads may wait in read(2) of /dev/fuse at once, about, for a mount that was made with procs Go processors
// (GOMAXPROCS): package devfuse's, or go-fuse's, which allows a reader for each processor, 2 to 16, and one more.
func Readers(procs int) int { return min(max(procs, 2), 16) + 1 }
