package engine

import (
	"sync"
	"sync/atomic"
	"time"
)

// driverCalls tells of a call of the GPU's driver that does not return. Its caller drives a lane, and holds what a failover would need, so requests wait for the call as long as
// it takes: nothing can be done but to say so. One call at a time is watched.
type driverCalls struct {
	e     *Engine
	timer *time.Timer // Config.HangTimeout after began
	began time.Time
	under atomic.Bool // a call is under way

	mu   sync.Mutex
	told bool // of it; protected by mu
}

func newDriverCalls(e *Engine) *driverCalls {
	w := &driverCalls{e: e}
	w.timer = time.AfterFunc(time.Hour, w.tell)
	w.timer.Stop()
	return w
}

func (w *driverCalls) tell() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.under.Load() {
		return
	}
	w.told = true
	w.e.c.Log().Error("a call of the GPU's driver does not return, and requests wait for it: if that lasts, look at the kernel's log, and kill the daemon",
		"device", w.e.c.Name(), "waited", w.e.cfg.HangTimeout.String())
}

// begin is called before such a call, end after it.
func (w *driverCalls) begin() {
	w.began = time.Now()
	w.under.Store(true)
	w.timer.Reset(w.e.cfg.HangTimeout)
}

func (w *driverCalls) end() {
	w.under.Store(false)
	if w.timer.Stop() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.told {
		w.told = false
		w.e.c.Log().Warn("the GPU's driver has returned from a call", "device", w.e.c.Name(), "waited", time.Since(w.began).Round(time.Millisecond).String())
	}
}
