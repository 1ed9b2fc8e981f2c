package main

import "time"

// idle is what an unused mount costs, once what came before has settled.
func idle(s *system) (done, error) {
	if s.pid == 0 {
		return done{}, nil
	}
	const settle, watch = 10 * time.Second, 5 * time.Second // what is committed is copied to its place seconds later
	if err := sync(s.mnt); err != nil {
		return done{}, err
	}
	time.Sleep(settle)
	before, err := readCounters(s.pid)
	if err != nil {
		return done{}, err
	}
	time.Sleep(watch)
	after, err := readCounters(s.pid)
	if err != nil {
		return done{}, err
	}
	cpu, _ := after.since(before)
	return done{value: 100 * cpu.Seconds() / watch.Seconds()}, nil
}
