package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// moment is when something was, by the machine's clock, and by one that nobody sets and that goes on while the machine sleeps (CLOCK_BOOTTIME).
type moment struct {
	wall time.Time
	boot time.Duration
}

// setLeast is by how much the machine's clock must have been set to be another clock: more than a leap second.
const setLeast = 2 * time.Second

func thisMoment() moment {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // each kernel that has FUSE has it
	return moment{time.Now(), time.Duration(t.Nano())}
}

// seenFrom is m by the machine's clock as it is at a later moment: a machine without a battery begins at 1970, and learns later what time it was.
func (m moment) seenFrom(now moment) time.Time {
	at := now.wall.Round(0).Add(m.boot - now.boot)
	if at.Sub(m.wall.Round(0)).Abs() < setLeast {
		return m.wall
	}
	return at
}
