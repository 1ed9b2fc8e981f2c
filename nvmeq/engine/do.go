package engine

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// AnyLane lets Do choose.
const AnyLane = -1

// Do carries out the commands on one lane, concurrently and in no defined order, and returns when all have ended: nil,
// or the error of the first that failed. lane is a hint, taken modulo Lanes; AnyLane picks one that is idle. A command
// that is not valid fails the call before anything is sent.
func (e *Engine) Do(lane int, cmds []Command) error {
	if len(cmds) == 0 {
		return nil
	}
	if e.cpu != nil {
		defer e.router.begins(cmds).end()
	}
	if lane >= 0 {
		if lane %= e.Lanes(); lane >= len(e.lanes) {
			return e.doBeside(lane-len(e.lanes), cmds)
		}
		return e.doHere(lane, cmds)
	}
	if e.cpu != nil && e.toCPU(cmds) {
		return e.cpu.Do(lane, cmds)
	}
	return e.owner(cmds).doHere(lane, cmds)
}

// doHere is Do on the engine's own lanes, of one kind.
func (e *Engine) doHere(lane int, cmds []Command) error {
	if err := e.prepare(cmds); err != nil {
		return err
	}
	if err := e.settle(cmds); err != nil {
		return err
	}
	e.beforeThreads()
	k := e.kind(cmds)
	weight := k.weight() + weigh(cmds)
	l, err := e.claim(lane, k, weight)
	if err != nil {
		return err
	}
	b := l.submit(cmds, false)
	l.wait(b)
	l.recycle(b)
	l.load.Add(-weight)
	e.checkMemory(cmds)
	return firstErr(cmds)
}

// Spread is Do over as many lanes as there are commands: for controllers whose queue pairs work in parallel.
func (e *Engine) Spread(cmds []Command) error {
	if len(cmds) == 0 {
		return nil
	}
	if e.cpu != nil {
		defer e.router.begins(cmds).end()
		if e.toCPU(cmds) {
			if e.c.Simulated() {
				return e.cpu.Do(AnyLane, cmds) // it works on this thread, on whichever lane
			}
			return e.cpu.Spread(cmds)
		}
	}
	return e.owner(cmds).spreadHere(cmds)
}

// spreadHere is Spread over the engine's own lanes, of one kind.
func (e *Engine) spreadHere(cmds []Command) error {
	n := min(len(e.lanes), len(cmds))
	if n <= 1 {
		return e.doHere(AnyLane, cmds)
	}
	if err := e.prepare(cmds); err != nil {
		return err
	}
	if err := e.settle(cmds); err != nil {
		return err
	}
	e.beforeThreads()
	e.spread(cmds, n)
	e.checkMemory(cmds)
	return firstErr(cmds)
}

// spread is Do over n lanes. The caller drives each lane in turn, unless another caller does.
func (e *Engine) spread(cmds []Command, n int) {
	type part struct {
		l      *lane
		b      *batch
		weight int64
	}
	parts := make([]part, 0, n)
	first := e.pick(AnyLane).index
	for i := range n {
		l := e.lanes[(first+i)%len(e.lanes)]
		mine := cmds[i*len(cmds)/n : (i+1)*len(cmds)/n]
		weight := weigh(mine)
		l.load.Add(weight)
		if err := l.checkOpen(weight); err != nil {
			for j := i * len(cmds) / n; j < len(cmds); j++ {
				cmds[j].Err = err
			}
			break
		}
		parts = append(parts, part{l, l.submit(mine, true), weight})
	}
	w := e.pace()
	defer w.End()
	for left := len(parts); left > 0; {
		progress := false
		left = 0
		for _, p := range parts {
			if p.b.done.Load() {
				continue
			}
			left++
			if e.c.Resetting() {
				e.c.AwaitReset()
			}
			if !p.l.drive.TryLock() {
				continue
			}
			gen := e.c.Generation()
			progress = p.l.poll() || progress
			err := p.l.broken
			p.l.handOver()
			if err != nil {
				e.c.Recover(gen, err)
			}
		}
		if progress {
			w.Progress()
		} else if left > 0 {
			w.Idle()
		}
	}
	for _, p := range parts {
		p.l.recycle(p.b)
		p.l.load.Add(-p.weight)
	}
}

// prepare checks the commands and sets their results to zero.
func (e *Engine) prepare(cmds []Command) error {
	if err := e.c.Err(); err != nil {
		return err
	}
	for i := range cmds {
		c := &cmds[i]
		c.Err, c.Status, c.DW0, c.Latency, c.tries, c.page = nil, 0, 0, 0, 0, -1
		err := e.check(c)
		if err == nil {
			err = e.refuses(c)
		}
		if err != nil {
			c.Err = fmt.Errorf("nvme: %w", err)
			return c.Err
		}
	}
	return nil
}

// firstErr is the error of the first command that failed.
func firstErr(cmds []Command) error {
	for i := range cmds {
		if cmds[i].Err != nil {
			return cmds[i].Err
		}
	}
	return nil
}

// flushWeight is the load of a batch with a flush, 1 that of any other: AnyLane avoids a lane that has a flush.
const flushWeight = 1 << 20

// weigh is the load that a batch puts on its lane.
func weigh(cmds []Command) int64 {
	for i := range cmds {
		if cmds[i].Op == nvme.IOFlush {
			return flushWeight
		}
	}
	return 1
}

// flushTimeoutFactor is how many times as long as another command a software controller's flush may take: it writes the page
// cache of the image to disk, which may be gigabytes.
const flushTimeoutFactor = 20

// timeout is how long one command may take.
func (e *Engine) timeout(op nvme.Opcode) time.Duration {
	if op == nvme.IOFlush && e.c.Simulated() {
		return flushTimeoutFactor * e.cfg.Timeout
	}
	return e.cfg.Timeout
}

// claim adds the weight of a batch to the load of its lane. AnyLane is the first idle lane: with little work few lanes run, and
// few threads of a software controller.
func (e *Engine) claim(hint int, k kind, weight int64) (*lane, error) {
	if hint < 0 {
		for _, l := range e.open(k) {
			if l.load.CompareAndSwap(0, weight) {
				return l, l.checkOpen(weight)
			}
		}
		if e.divided() {
			l := e.join(k, weight)
			return l, l.checkOpen(weight)
		}
	}
	l := e.pick(hint)
	l.load.Add(weight)
	return l, l.checkOpen(weight)
}

// pick chooses the lane of a batch: the caller's, or the one with the least load.
func (e *Engine) pick(hint int) *lane {
	if hint >= 0 {
		return e.lanes[hint%len(e.lanes)]
	}
	n := uint32(len(e.lanes))
	first := rand.Uint32N(n)
	best := e.lanes[first]
	least := best.load.Load()
	for i := uint32(1); i < n && least > 0; i++ {
		l := e.lanes[(first+i)%n]
		if u := l.load.Load(); u < least {
			best, least = l, u
		}
	}
	return best
}
