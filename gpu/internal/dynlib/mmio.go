package dynlib

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"
)

// IsMMIO says whether the mapping at addr is a device's: the kernel marks those "io" or "pf" (VM_IO, VM_PFNMAP) in
// /proc/self/smaps (Documentation/filesystems/proc.rst).
func IsMMIO(addr uintptr) (bool, error) {
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return false, fmt.Errorf("whether it is MMIO: %w", err)
	}
	defer f.Close()
	inside := false
	lines := bufio.NewScanner(f)
	lines.Buffer(make([]byte, 0, 1<<16), 1<<20)
	for lines.Scan() {
		line := lines.Text()
		var from, to uintptr
		if n, _ := fmt.Sscanf(line, "%x-%x ", &from, &to); n == 2 {
			inside = from <= addr && addr < to
			continue
		}
		if flags, ok := strings.CutPrefix(line, "VmFlags:"); ok && inside {
			words := strings.Fields(flags)
			return slices.Contains(words, "io") || slices.Contains(words, "pf"), nil
		}
	}
	if err := lines.Err(); err != nil {
		return false, fmt.Errorf("whether it is MMIO: %w", err)
	}
	return false, fmt.Errorf("nothing is mapped at %#x", addr)
}
