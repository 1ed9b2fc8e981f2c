package uring

import "testing"

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
