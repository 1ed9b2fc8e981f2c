package engine

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/calls"
	"github.com/lanefs/lanefs/nvmeq/controller"
)

// driverCalls makes calls of a GPU's driver, each on a goroutine of its own. A call may not return, and who drives a lane holds what a failover needs: so it waits for some time,
// and gives the call up. Then nothing is called any more. A call that returns later finds nobody: what it gives is read by no one, what it was given is used by no one else,
// since memory of a runtime that has failed is neither freed nor used again. It may have begun a kernel, as one that hangs may wake up: see failover.go.
type driverCalls struct {
	c     *controller.Controller
	limit time.Duration // of a call that does not wait
	hung  atomic.Bool   // one was given up
}

// errCallHangs is in the error of a call that was given up, or not made since another one was.
const errCallHangs = calls.Hang("a call of the GPU's driver does not return")

// within returns what f returns, or errCallHangs if that takes longer than wait beyond the limit of each call. f's goroutine alone has what f uses.
func within[T any](d *driverCalls, what string, wait time.Duration, f func() (T, error)) (none T, err error) {
	if d.hung.Load() {
		return none, errCallHangs
	}
	limit := d.limit + wait
	got, end, err := calls.Make(calls.Wait{Limit: limit}, f, calls.LogReturn[T](d.c.Log(), "device", d.c.Name(), "call", what))
	if end == calls.Returned {
		return got, err
	}
	d.hung.Store(true)
	d.c.Log().Error("a call of the GPU's driver does not return, and is given up: look at the kernel's log", "device", d.c.Name(), "call", what, "waited", limit.String())
	return none, fmt.Errorf("%w: %s, after %v", errCallHangs, what, limit)
}

// act is within for a call that gives nothing but an error.
func (d *driverCalls) act(what string, wait time.Duration, f func() error) error {
	_, err := within(d, what, wait, func() (struct{}, error) { return struct{}{}, f() })
	return err
}

// stream is s with its calls made so. Kernels of a runtime on the CPU run on the thread of the caller, which waits for them: there is no driver then, and d is nil.
func (d *driverCalls) stream(s gpu.Stream) gpu.Stream {
	if d == nil || s == nil {
		return s
	}
	return driverStream{s, d}
}

// driverStream is the stream of a GPU, called by driverCalls.
type driverStream struct {
	s     gpu.Stream
	calls *driverCalls
}

func (s driverStream) Launch(f gpu.Function, grid, block gpu.Dim3, args ...uint64) error {
	args = slices.Clone(args) // a call that is given up reads them when the caller's have changed
	return s.calls.act("launch", 0, func() error { return s.s.Launch(f, grid, block, args...) })
}

func (s driverStream) Copy(dst, src gpu.Addr, n int64) error {
	return s.calls.act("copy", 0, func() error { return s.s.Copy(dst, src, n) })
}

func (s driverStream) Fill(dst gpu.Addr, v byte, n int64) error {
	return s.calls.act("fill", 0, func() error { return s.s.Fill(dst, v, n) })
}

func (s driverStream) Done() (bool, error) {
	return within(s.calls, "query of a stream", 0, s.s.Done)
}

func (s driverStream) Wait(timeout time.Duration) error {
	return s.calls.act("wait for a stream", timeout, func() error { return s.s.Wait(timeout) })
}

func (s driverStream) Close() error { return s.calls.act("close of a stream", 0, s.s.Close) }
