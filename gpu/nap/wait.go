package nap

import "time"

// waitLooks is how many looks a wait takes at least, between which time passes, until its limit is spent.
const waitLooks = 4

// Wait is how long who polls has waited for something. Of the time between two looks a quarter of the limit counts at most: a process that was stopped meanwhile could not look, nor could
// its threads answer, nor who waits for its threads. The zero value is a wait that begins with the first look.
type Wait struct {
	looked time.Time
	spent  time.Duration
}

// Look is how long the wait has lasted now, of a limit.
func (w *Wait) Look(now time.Time, limit time.Duration) time.Duration {
	if !w.looked.IsZero() {
		w.spent += min(now.Sub(w.looked), limit/waitLooks)
	}
	w.looked = now
	return w.spent
}

// Over says whether the wait has lasted longer than a limit now, which is more than 0.
func (w *Wait) Over(limit time.Duration) bool { return w.Look(time.Now(), limit) > limit }
