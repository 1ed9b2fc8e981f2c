package calls

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"time"
)

// ErrHangs is wrapped by the error of a call of a GPU's driver that has not returned, or was not made since another one has not.
var ErrHangs = errors.New("the GPU or its driver hangs: look at the kernel's log (dmesg), and reset the GPU or restart the machine; --gpu host does without it")

// Hang is an error that wraps ErrHangs, in its own words.
type Hang string

func (h Hang) Error() string { return string(h) }
func (h Hang) Unwrap() error { return ErrHangs }

// Wait is how long who makes a call waits for it. The zero value of a field asks for nothing.
type Wait struct {
	Limit time.Duration // then the call is given up
	Step  time.Duration // between two looks at the time; 0: an eighth of Limit
	// Spent is how much of Limit is spent at a look, of so much at the look before; nil: a step more. The time is counted so, and no clock is read: a process that was stopped meanwhile
	// has used one step.
	Spent func(spent, step time.Duration) time.Duration
	Over  <-chan struct{} // closed when nobody wants the call any more: it is given up at once
	Notes *Notes          // takes notes of what it begins
}

// End is how the wait for a call has ended.
type End uint8

const (
	Returned End = iota // the call has returned
	Late                // it was given up after Wait.Limit
	Unwanted            // it was given up since Wait.Over was closed
)

const steps = 8

// Who has what a call gives, the goroutine that made it and who waits for it: the first to say so decides.
const (
	made int32 = iota
	returned
	givenUp
)

// Make makes a call that may never return on a goroutine of its own, and waits for it: got and err are f's, if it has returned. A call that is given up is left to end by itself, or
// with the process: f alone has what it uses until then. What it gives at last is late's, which its goroutine calls; nil: nobody's.
func Make[T any](w Wait, f func() (T, error), late func(T, error)) (got T, end End, err error) {
	var state atomic.Int32
	var v T // and bad: the caller's only once state is returned
	var bad error
	done := make(chan struct{})
	go func() {
		if w.Notes != nil {
			defer w.Notes.take()()
		}
		v, bad = f()
		if state.CompareAndSwap(made, returned) {
			close(done)
		} else if late != nil {
			late(v, bad)
		}
	}()
	step := w.Step
	if step == 0 {
		step = max(w.Limit/steps, 1)
	}
	look := time.NewTicker(step)
	defer look.Stop()
	for spent := time.Duration(0); end == Returned; {
		select {
		case <-done:
			return v, Returned, bad
		case <-w.Over:
			end = Unwanted
		case <-look.C:
			if w.Spent != nil {
				spent = w.Spent(spent, step)
			} else {
				spent += step
			}
			if spent > w.Limit-step/2 { // a limit may be no whole number of steps
				end = Late
			}
		}
	}
	if !state.CompareAndSwap(made, givenUp) {
		return v, Returned, bad
	}
	return got, end, nil
}

// LogReturn is Make's late for a call whose return is of interest only to who reads the log: a warning, with these attributes and how long the call has taken from now on.
func LogReturn[T any](log *slog.Logger, attributes ...any) func(T, error) {
	began := time.Now()
	return func(T, error) {
		log.Warn("the GPU's driver has returned from a call that was given up", append(attributes, "after", time.Since(began).Round(time.Millisecond).String())...)
	}
}

// While is a Wait.Spent for time that counts only while is says so.
func While(is func() bool) func(spent, step time.Duration) time.Duration {
	return func(spent, step time.Duration) time.Duration {
		if is() {
			spent += step
		}
		return spent
	}
}
