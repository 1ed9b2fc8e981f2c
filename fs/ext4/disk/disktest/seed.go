package disktest

import (
	"os"
	"strconv"
	"time"
)

// FreshSeed starts the random sequences that no earlier run has tried. It is $LANEFS_SEED where that is set, which make
// test does: every state of the sources tries new sequences, and the same state tries the same ones wherever it runs, so that
// what fails on one machine can be seen on another. Elsewhere it is the time.
func FreshSeed() uint64 {
	if n, err := strconv.ParseUint(os.Getenv("LANEFS_SEED"), 10, 64); err == nil {
		return n
	}
	return uint64(time.Now().UnixNano()) % 1_000_000_000
}
