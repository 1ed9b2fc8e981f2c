// Package calls is calls of a vendor's library that may not return: Make makes one that is given up then. It also notes which call has begun last, as long as somebody follows: one that
// does not return is to be named. gpu/internal/driver says what begins; who opens a GPU follows.
package calls

import "sync/atomic"

var (
	followers atomic.Int64
	last      atomic.Pointer[call]
	count     atomic.Uint64
)

type call struct {
	name   string
	number uint64
}

// Follow has calls noted until end. last is the name of the one that has begun last, and how many have so far; none are "" and 0.
func Follow() (last func() (name string, number uint64), end func()) {
	if followers.Add(1) == 1 {
		forget()
	}
	return latest, func() { followers.Add(-1) }
}

func forget() { last.Store(&call{}) }

func latest() (string, uint64) {
	c := last.Load()
	return c.name, c.number
}

// Begins notes a call. It costs a load where nobody follows.
func Begins(name string) {
	if followers.Load() > 0 {
		last.Store(&call{name, count.Add(1)})
	}
}
