package uring

import (
	"testing"
	"time"
)

// PretendOffline has a test's transports believe that only CPU 0 is online.
func PretendOffline(t *testing.T) {
	real := cpus
	cpus = func(name string) ([]int, error) {
		if name == "online" {
			return []int{0}, nil
		}
		return real(name)
	}
	t.Cleanup(func() { cpus = real })
}

// Keeping is how many threads keep their Go processor at the moment.
func (t *Transport) Keeping() int { return int(t.keepers.Load()) }

// Waits is what a thread notes of its waits.
type Waits struct{ waits }

// Count takes note of a part of a wait, which ended with a request if ready, and says whether the thread is to keep its processor in the next.
func (w *Waits) Count(d time.Duration, ready bool) bool {
	w.count(d, ready)
	return w.quick >= quickEnough
}
