package devfuse

import "github.com/lanefs/lanefs/fs/schedidle"

// Waiting is how many readers wait.
func (t *Transport) Waiting() int { return int(t.waiting.Load()) }

// Parked is how many readers wait until they are needed.
func (t *Transport) Parked() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.parked)
}

// Asking has f called before /proc is asked where a thread runs, until restore is. No mount may have a Transport when either is called.
func Asking(f func()) (restore func()) {
	whereRuns = func(thread uint32) (int, bool) {
		f()
		return schedidle.RunsOn(thread)
	}
	return func() { whereRuns = schedidle.RunsOn }
}
