package copyengine

import (
	"fmt"
	"iter"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/thread"
)

// hand does what its users ask, one at a time, and makes the calls of the driver that this takes. A user whose call does not return is given back what he has: he goes on, with
// ErrStuck, and the hand is lost with the call.
//
// The user has locks of all rooms above, so he cannot make the calls himself: he could not be had back. And to wake another goroutine takes as long as a small copy. So the hand is
// a coroutine (iter.Pull), which has the user's thread while the user waits: a switch takes 0.1 µs, there and back. If the call does not return it is the watch that switches back, in the
// hand's place. Of two who could, call.end and watch.stick, one does.
//
// A goroutine that is locked to its thread cannot lend it: another one asks for it, which takes longer.
type hand struct {
	call *call
	what func() error // to be done
	next func() (error, bool)
	stop func()
}

func newHand(w *watch) *hand {
	h := &hand{call: w.newCall()}
	made := make(chan struct{})
	go func() { // which is not locked to a thread
		defer close(made)
		h.next, h.stop = iter.Pull(func(yield func(error) bool) {
			h.call.after = func(why error) { yield(why) } // never returns: nobody asks again
			for goesOn := yield(nil); goesOn; {
				goesOn = yield(h.what())
			}
		})
		h.next()
	}()
	<-made
	return h
}

// do has what done. The caller has the hand to himself.
func (h *hand) do(what func() error) error {
	if h.call.w.isStuck() { // a hand that is lost is not asked again
		return ErrStuck
	}
	h.what = what
	if !thread.Locked() {
		return h.ask()
	}
	done := make(chan error, 1)
	go func() { done <- h.ask() }()
	return <-done
}

func (h *hand) ask() error {
	err, ok := h.next()
	if !ok {
		return fmt.Errorf("the stream has ended: %w", ErrStuck)
	}
	return err
}

// close ends a hand that is not lost, and that nobody uses.
func (h *hand) close() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.stop()
	}()
	<-done
}

// handed is a stream whose calls are a call's.
type handed struct {
	gpu.Stream
	c *call
}

func (s handed) Copy(dst, src gpu.Addr, n int64) error {
	if !s.c.begin() {
		return ErrStuck
	}
	defer s.c.end()
	return s.Stream.Copy(dst, src, n)
}

func (s handed) Launch(f gpu.Function, grid, block gpu.Dim3, args ...uint64) error {
	if !s.c.begin() {
		return ErrStuck
	}
	defer s.c.end()
	return s.Stream.Launch(f, grid, block, args...)
}

func (s handed) Done() (bool, error) {
	if !s.c.begin() {
		return false, ErrStuck
	}
	defer s.c.end()
	return s.Stream.Done()
}

// handedMarker is the Marker of a handed, if that has one.
type handedMarker struct {
	m gpu.Marker
	c *call
}

func (m handedMarker) Mark(dst gpu.Addr, v uint32) error {
	if !m.c.begin() {
		return ErrStuck
	}
	defer m.c.end()
	return m.m.Mark(dst, v)
}
