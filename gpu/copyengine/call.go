package copyengine

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lanefs/lanefs/gpu/calls"
)

// call is the calls of the driver that one goroutine makes, one after the other. Any of them may not return: then the watch gives it up, and the goroutine, should it ever
// return, does nothing more. It says so by one word, so a call that returns takes two stores more.
type call struct {
	w     *watch
	state atomic.Int64 // noCall, the number of the call under way, or givenUp
	count int64        // calls so far; the goroutine's
	after func(error)  // called by the watch when it has given the call up; nil: nobody waits for it
}

const (
	noCall  = 0
	givenUp = -1
)

// begin comes before a call, which is not to be made if it returns false: copies are stuck.
func (c *call) begin() bool {
	c.count++
	c.state.Store(c.count)
	if !c.w.on.Load() {
		c.w.run()
	}
	if c.w.isStuck() { // whoever sees that after the store; else the watch sees the store
		c.end()
		return false
	}
	return true
}

// end follows a call. It does not return if the call was given up: what the goroutine has is somebody else's.
func (c *call) end() {
	if !c.state.CompareAndSwap(c.count, noCall) {
		select {}
	}
}

// watch gives up calls that do not return in callLimit. From then on copies are stuck: none is begun, and none is waited for.
type watch struct {
	limit     time.Duration // callLimit
	calls     atomic.Pointer[[]*call]
	on        atomic.Bool // its goroutine runs
	mu        sync.Mutex  // held to add calls
	stuck     chan struct{}
	stickOnce sync.Once
	why       atomic.Pointer[error] // of stuck
	tell      atomic.Pointer[func(error)]
}

// callSteps is how often a watch looks while a call may last: a process that was stopped meanwhile has used one of the looks.
const callSteps = 8

// callLimit is how long a call may take; tests shorten it.
var callLimit = 5 * time.Second

func newWatch() *watch { return &watch{limit: callLimit, stuck: make(chan struct{})} }

// newCall makes a call that is watched.
func (w *watch) newCall() *call {
	c := &call{w: w}
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []*call
	if p := w.calls.Load(); p != nil {
		all = append(all, *p...)
	}
	all = append(all, c)
	w.calls.Store(&all)
	return c
}

func (w *watch) all() []*call {
	if p := w.calls.Load(); p != nil {
		return *p
	}
	return nil
}

// run begins to watch, until there is nothing to watch.
func (w *watch) run() {
	if w.on.CompareAndSwap(false, true) {
		go w.look()
	}
}

// look looks callSteps times while a call may last.
func (w *watch) look() {
	type seen struct {
		call  int64
		looks int
	}
	was := map[*call]seen{}
	step := time.NewTicker(max(w.limit/callSteps, 1))
	defer step.Stop()
	for idle := 0; ; {
		<-step.C
		idle++
		for _, c := range w.all() {
			now, s := c.state.Load(), was[c]
			if s.call != now {
				s, idle = seen{call: now}, 0
			} else if s.looks++; now > noCall && s.looks >= callSteps {
				w.stick(fmt.Errorf("a call of the GPU's driver does not return, after %v: %w", w.limit, ErrStuck))
				return
			}
			was[c] = s
		}
		if idle < callSteps || w.busy() {
			continue
		}
		w.on.Store(false)
		if !w.busy() || !w.on.CompareAndSwap(false, true) { // a call that began before the store has not begun another watch
			return
		}
	}
}

// busy says whether a call is under way.
func (w *watch) busy() bool {
	for _, c := range w.all() {
		if c.state.Load() > noCall {
			return true
		}
	}
	return false
}

// stick ends all copies: those that wait for the device hear of it by stuck, and those in a call are given up.
func (w *watch) stick(why error) {
	w.stickOnce.Do(func() {
		w.why.Store(&why)
		close(w.stuck)
		for _, c := range w.all() {
			if n := c.state.Load(); n > noCall && c.state.CompareAndSwap(n, givenUp) && c.after != nil {
				go c.after(why)
			}
		}
		w.told()
	})
}

// onStuck has f called once when copies are stuck, with why: at once if they are.
func (w *watch) onStuck(f func(error)) {
	w.tell.Store(&f)
	if w.isStuck() {
		w.told()
	}
}

// told calls what was to be called, once.
func (w *watch) told() {
	if f := w.tell.Swap(nil); f != nil {
		go (*f)(*w.why.Load())
	}
}

func (w *watch) isStuck() bool {
	select {
	case <-w.stuck:
		return true
	default:
		return false
	}
}

// apart makes calls of the driver that nobody is in a hurry for, on a goroutine of their own. What f has is lost if it does not return in time.
func (w *watch) apart(f func() error) error {
	if w.isStuck() {
		return ErrStuck
	}
	_, end, err := calls.Make(calls.Wait{Limit: w.limit, Over: w.stuck}, func() (struct{}, error) { return struct{}{}, f() }, nil)
	switch end {
	case calls.Returned:
		return err
	case calls.Unwanted:
		return ErrStuck
	}
	err = fmt.Errorf("calls of the GPU's driver do not return, after %v: %w", w.limit, ErrStuck)
	w.stick(err)
	return err
}
