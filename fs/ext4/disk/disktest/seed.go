package disktest

import (
	"os"
	"strconv"
	"time"
)

// Turn reports whether the k-th case of a test is one that this run takes. Where $LANEFS_SEED is set, which make test does, it is every n-th,
// and the seed says which, so that the states of the sources take turns; elsewhere, as in make cases, it is all.
func Turn(k, n int) bool {
	return !InTurn() || uint64(k)%uint64(n) == FreshSeed()%uint64(n)
}

// InTurn says whether this run takes a part of the cases, as Turn says, and not all.
func InTurn() bool {
	_, err := strconv.ParseUint(os.Getenv("LANEFS_SEED"), 10, 64)
	return err == nil
}

// FreshSeed starts the random sequences that no earlier run has tried. It is $LANEFS_SEED where that is set, which make
// test does: every state of the sources tries new sequences, and the same state tries the same ones wherever it runs, so that
// what fails on one machine can be seen on another. Elsewhere it is the time.
func FreshSeed() uint64 {
	if n, err := strconv.ParseUint(os.Getenv("LANEFS_SEED"), 10, 64); err == nil {
		return n
	}
	return uint64(time.Now().UnixNano()) % 1_000_000_000
}
