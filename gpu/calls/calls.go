// Package calls is calls of a vendor's library that may not return: Make makes one that is given up then. One is to be named, too: Notes has which call a goroutine has begun last, as
// gpu/internal/driver says.
package calls

import (
	"sync"
	"sync/atomic"

	"github.com/lanefs/lanefs/gpu/thread"
)

// Notes is which calls of a vendor's library the goroutine of a Make begins. Calls that others make meanwhile, to look whether a device is lost for instance, are not among them.
type Notes struct {
	last   atomic.Pointer[string]
	number atomic.Uint64
}

// Last is the name of the call that has begun last, and how many have so far; none are "" and 0.
func (n *Notes) Last() (name string, number uint64) {
	if p := n.last.Load(); p != nil {
		name = *p
	}
	return name, n.number.Load()
}

var (
	taken atomic.Int64 // notes
	notes sync.Map     // *Notes by goroutine
)

// take has the calls of this goroutine noted until end.
func (n *Notes) take() (end func()) {
	me := thread.Self()
	notes.Store(me, n)
	taken.Add(1)
	return func() {
		taken.Add(-1)
		notes.Delete(me)
	}
}

// Begins notes a call. It costs a load where nobody takes notes.
func Begins(name string) {
	if taken.Load() == 0 {
		return
	}
	if n, ok := notes.Load(thread.Self()); ok {
		n.(*Notes).last.Store(&name)
		n.(*Notes).number.Add(1)
	}
}
