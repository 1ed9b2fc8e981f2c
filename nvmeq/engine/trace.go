package engine

import (
	"errors"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/kernels"
	"github.com/lanefs/lanefs/kernels/traced"
)

// Steps is how long each step of one command took, by the clock of the lane that carried it out. They follow one another: between Build and
// Reap nothing is left out. All are zero where the command was answered without a completion, or the lanes do not trace.
type Steps struct {
	Build time.Duration // the lane writes SQE and PRP list, of all that it posts at once
	Post  time.Duration // the release that makes them visible to the controller
	Ring  time.Duration // the store to the doorbell
	Wait  time.Duration // until a poll finds the completion
	Reap  time.Duration // until the result is written
}

// traceClock is the clock by which lanes trace.
type traceClock struct{ hz float64 }

// calibrateTime is how long a clock of unknown rate is watched.
const calibrateTime = 20 * time.Millisecond

// calibrate finds the rate of the clock: a runtime that has none for kernels that run on their own is a CPU, whose counter's rate is measured.
func (c *traceClock) calibrate(rt gpu.Runtime, m gpu.Module, s gpu.Stream) (err error) {
	if hz := rt.Facts().ClockHz; hz > 0 {
		c.hz = float64(hz)
		return nil
	}
	f, err := m.Function(traced.ClockKernel)
	if err != nil {
		return err
	}
	out, err := rt.Alloc(gpu.HostMapped, 4096)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	look := func() (uint64, time.Time, error) {
		if err := s.Launch(f, one, one, uint64(out.Addr()), 0); err != nil {
			return 0, time.Time{}, err
		}
		err := s.Wait(copyTimeout)
		return atomic.LoadUint64((*uint64)(unsafe.Pointer(&out.Host()[0]))), time.Now(), err
	}
	first, began, err := look()
	if err != nil {
		return err
	}
	time.Sleep(calibrateTime)
	last, ended, err := look()
	if err != nil {
		return err
	}
	if c.hz = float64(last-first) / ended.Sub(began).Seconds(); last <= first {
		return errors.New("it stands still")
	}
	return nil
}

// between is the time from one reading to another. The counters of two CPUs may differ by a little, which is not a time.
func (c *traceClock) between(from, to uint64) time.Duration {
	if to <= from {
		return 0
	}
	return time.Duration(float64(to-from) / c.hz * float64(time.Second))
}

func (c *traceClock) steps(t kernels.Trace) Steps {
	return Steps{Build: c.between(t.Seen, t.Built), Post: c.between(t.Built, t.Released), Ring: c.between(t.Released, t.Rung),
		Wait: c.between(t.Rung, t.Found), Reap: c.between(t.Found, t.Answered)}
}

// traceOf is the trace of the result at the lane's position, zero if it has none.
func (l *lane) traceOf(r *kernels.Result) kernels.Trace {
	if l.traces == nil || r.Engine != kernels.EngineOK {
		return kernels.Trace{}
	}
	// The lane has released the trace before it showed the result, whose load was an acquire.
	if t := l.traces[l.resultPos&uint32(len(l.traces)-1)]; t.Seq == r.Seq {
		return t
	}
	return kernels.Trace{}
}
