package copyengine

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/calls"
	"github.com/lanefs/lanefs/gpu/nap"
)

// ErrStuck is a copy that has not ended in copyTimeout, or a call of the driver that has not returned in callLimit. The device may still do it, at any time: what it reads and
// writes must stay where it is until the process ends, and the engine begins no copy any more.
const ErrStuck = calls.Hang("the GPU does not end a copy; its memory cannot be given back")

const (
	markLooks  = 256                    // at the mark, between two looks at the clock
	yieldEvery = 20 * time.Microsecond  // goroutines get their turn; more often, and threads that wait spend their time on the scheduler's lock
	askEvery   = 200 * time.Microsecond // the driver, beside the mark: only it tells of a device that has failed
	spinFor    = 200 * time.Microsecond // then waiting naps
)

// mark is a word of host memory in which a stream stores a number when all before has ended. The zero value is none: the driver is asked.
type mark struct {
	s    gpu.Marker
	word *uint32
	at   gpu.Addr // the word's, for the device
	want uint32
}

// newMark is a word at an offset of pinned memory.
func newMark(s gpu.Stream, m gpu.Memory, off int64) mark {
	k, ok := s.(gpu.Marker)
	if h, is := s.(handed); is {
		k, ok = h.Stream.(gpu.Marker)
		k = handedMarker{k, h.c}
	}
	if ok {
		return mark{s: k, word: (*uint32)(unsafe.Pointer(&m.Host()[off])), at: m.Addr() + gpu.Addr(off)}
	}
	return mark{}
}

// put has the stream store the next number, for which await waits. A driver that does not do that is asked from now on.
func (m *mark) put() mark {
	if m.s == nil {
		return mark{}
	}
	m.want++
	if m.s.Mark(m.at, m.want) != nil {
		*m = mark{}
	}
	return *m
}

func (m *mark) there() bool { return atomic.LoadUint32(m.word) == m.want }

// await waits for all that was begun on s, which m marks the end of. It calls running, if that is not nil, with times after which that had certainly not
// ended, whatever else kept this thread from looking. The driver is asked in between, so a handed stream whose copies are stuck is not waited for.
func await(s gpu.Stream, m mark, running func(time.Duration)) error {
	var waited nap.Wait
	yield, ask := yieldEvery, askEvery
	for {
		since := waited.Look(time.Now(), copyTimeout)
		for i := 0; m.word != nil && i < markLooks; i++ {
			if m.there() {
				return nil
			}
		}
		if m.word == nil || since >= ask {
			done, err := s.Done()
			if done || err != nil {
				return err
			}
			ask = since + askEvery
		}
		if running != nil {
			running(since)
		}
		switch {
		case since > copyTimeout:
			return fmt.Errorf("copies have not ended after %v: %w", copyTimeout, os.ErrDeadlineExceeded)
		case since < spinFor:
			if since >= yield {
				runtime.Gosched()
				yield = since + yieldEvery
			}
		case since < 20*time.Millisecond:
			nap.For(20 * time.Microsecond)
		default:
			time.Sleep(time.Millisecond)
		}
	}
}

// await waits for what was begun on a stream of the engine. c's hand calls it.
func (e *Engine) await(c *stream) error {
	if e.isStuck() {
		return ErrStuck
	}
	var end mark
	if c.begun > 0 {
		end = c.end.put()
	}
	var running func(time.Duration)
	if c.launched {
		running = func(d time.Duration) {
			if d > e.gather.limit(c.ended) {
				e.gather.isLate(d)
			}
		}
	}
	err := await(c, end, running)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("%w: %w", ErrStuck, err)
		e.stick(err)
	}
	if errors.Is(err, ErrStuck) {
		return err
	}
	e.traffic.ended.Add(c.begun)
	c.begun, c.launched = 0, false
	if c.list != nil {
		c.list.used = 0
	}
	return err
}

// Stuck is ErrStuck once a copy has not ended, else nil.
func (e *Engine) Stuck() error {
	if e.isStuck() {
		return ErrStuck
	}
	return nil
}

// tryTake gives a stream that is not in use, nil if there is none. give takes it back; a stuck one stays out.
func (e *Engine) tryTake() *stream {
	if e.isStuck() {
		return nil
	}
	select { // of one channel, which takes half a microsecond less than of two
	case c := <-e.idle:
		return c
	default:
		return nil
	}
}

// take is tryTake, and waits for one.
func (e *Engine) take() (*stream, error) {
	if c := e.tryTake(); c != nil {
		return c, nil
	}
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
