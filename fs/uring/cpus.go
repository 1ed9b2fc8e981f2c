package uring

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// The kernel wants a queue for each possible CPU; some of them may be offline (Documentation/admin-guide/cputopology.rst).
const cpuDir = "/sys/devices/system/cpu/"

// cpus reads a list of CPUs: "possible" or "online". A variable, for tests.
var cpus = func(name string) ([]int, error) {
	b, err := os.ReadFile(cpuDir + name)
	if err != nil {
		return nil, err
	}
	return parseCPUs(strings.TrimSpace(string(b)))
}

// parseCPUs reads "0-3,8".
func parseCPUs(text string) (list []int, err error) {
	for part := range strings.SplitSeq(text, ",") {
		first, last, ranged := strings.Cut(part, "-")
		if !ranged {
			last = first
		}
		from, err := strconv.Atoi(first)
		if err != nil {
			return nil, fmt.Errorf("CPU list %q: %w", text, err)
		}
		to, err := strconv.Atoi(last)
		if err != nil || to < from {
			return nil, fmt.Errorf("CPU list %q is not one", text)
		}
		for n := from; n <= to; n++ {
			list = append(list, n)
		}
	}
	return list, nil
}
