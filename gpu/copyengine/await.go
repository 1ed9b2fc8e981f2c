package copyengine

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/nap"
)

// ErrStuck is a copy that has not ended in copyTimeout. The device may still do it, at any time: what it reads and writes must stay
// where it is until the process ends, and the engine begins no copy any more.
var ErrStuck = errors.New("the GPU does not end a copy; its memory cannot be given back")

// await waits for all that was begun on s. It calls running, if that is not nil, with times after which that had certainly not ended,
// whatever else kept this thread from looking.
func await(s gpu.Stream, running func(time.Duration)) error {
	for start := time.Now(); ; {
		since := time.Since(start)
		done, err := s.Done()
		if done || err != nil {
			return err
		}
		if running != nil {
			running(since)
		}
		switch {
		case since > copyTimeout:
			return fmt.Errorf("copies have not ended after %v: %w", copyTimeout, os.ErrDeadlineExceeded)
		case since < 200*time.Microsecond:
			runtime.Gosched()
		case since < 20*time.Millisecond:
			nap.For(20 * time.Microsecond)
		default:
			time.Sleep(time.Millisecond)
		}
	}
}

// await waits for what was begun on a stream of the engine.
func (e *Engine) await(c *stream) error {
	if e.isStuck() {
		return ErrStuck
	}
	var running func(time.Duration)
	if c.launched {
		running = func(d time.Duration) {
			if d > e.gather.limit(c.mark) {
				e.gather.isLate(d)
			}
		}
	}
	err := await(c, running)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		e.stickOnce.Do(func() { close(e.stuck) })
		return fmt.Errorf("%w: %w", ErrStuck, err)
	}
	e.traffic.ended.Add(c.begun)
	c.begun, c.launched = 0, false
	if c.list != nil {
		c.list.used = 0
	}
	return err
}

func (e *Engine) isStuck() bool {
	select {
	case <-e.stuck:
		return true
	default:
		return false
	}
}

// Stuck is ErrStuck once a copy has not ended, else nil.
func (e *Engine) Stuck() error {
	if e.isStuck() {
		return ErrStuck
	}
	return nil
}

// take gives a stream that is not in use, give takes it back. A stuck one stays out.
func (e *Engine) take() (*stream, error) {
	if e.isStuck() {
		return nil, ErrStuck
	}
	select {
	case c := <-e.idle:
		return c, nil
	case <-e.stuck:
		return nil, ErrStuck
	}
}

func (e *Engine) give(c *stream) {
	if !e.isStuck() {
		e.idle <- c
	}
}
