package engine

import (
	"fmt"
	"slices"
	"time"

	"github.com/lanefs/lanefs/gpu/nap"
	"github.com/lanefs/lanefs/kernels"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// How a batch is carried out:
//
//  1. submit: the caller appends its batch to the lane's                             (parallel)
//  2. wait: the caller takes lane.drive, or sleeps while another caller has it       (one caller per lane)
//  3. poll, again and again by the caller that has drive, for every batch of the lane:
//     a. fill: retries and new commands become work items
//     b. kick: the kernel code posts, rings, reaps
//     c. drain: results end commands; the last command of a batch wakes its caller
//     d. Step: a controller in software works on the queue pair
//  4. handOver: a caller whose own batch is done wakes one that still waits
//
// So a single request needs no other thread, concurrent ones share the queue pair's depth, and an idle lane takes no CPU.

// wait returns when b is done.
func (l *lane) wait(b *batch) {
	c := l.e.c
	for !b.done.Load() {
		if c.Resetting() {
			c.AwaitReset()
		}
		if !l.drive.TryLock() {
			<-b.wake // done, or our turn to drive
			continue
		}
		gen, err := l.run(b)
		l.handOver()
		if err != nil {
			c.Recover(gen, err)
		}
	}
}

// run drives the lane until b is done, another goroutine resets the controller, or the lane needs a reset.
func (l *lane) run(b *batch) (gen uint32, err error) {
	c := l.e.c
	gen = c.Generation()
	l.own = b
	defer func() { l.own = nil }()
	w := l.e.pace()
	defer w.End()
	for !b.done.Load() {
		if c.Resetting() {
			return gen, nil
		}
		progress := l.poll()
		if l.broken != nil {
			return gen, l.broken
		}
		if progress {
			w.Progress()
		} else {
			w.Idle()
		}
	}
	return gen, nil
}

// handOver releases the lane and, if batches are left, wakes one of their callers to drive it.
func (l *lane) handOver() {
	l.drive.Unlock()
	// After the unlock: a caller whose TryLock failed before that has submitted its batch earlier still, so it is in the list.
	if l.listed.Load() == 0 {
		return
	}
	l.mu.Lock()
	for _, b := range l.batches {
		if !b.poll {
			b.wakeUp()
			break
		}
	}
	l.mu.Unlock()
}

// poll is one round of step 3. It says whether anything happened.
func (l *lane) poll() bool {
	if err := l.e.c.Err(); err != nil {
		l.failAll(err)
		return true
	}
	if l.broken != nil {
		return false
	}
	progress := l.fill()
	if err := l.kick(); err != nil {
		l.broken = err
		return false
	}
	if l.drain() > 0 {
		progress = true
		l.unanswered = nap.Wait{}
	}
	if len(l.lost) > 0 {
		l.handleLost()
		return true
	}
	if l.outstanding() == 0 {
		return progress
	}
	if l.e.step(l.qid) {
		return true
	}
	if l.idle++; progress {
		l.idle = 0
	} else if l.idle%hungEvery == 0 {
		l.checkHung(time.Now())
	}
	return progress
}

// fill posts what is to be posted, as far as there is room, and says whether it posted any.
func (l *lane) fill() bool {
	first := l.workPos
	if len(l.retry) > 0 && (l.retryAfter.IsZero() || time.Now().After(l.retryAfter)) {
		l.retryAfter = time.Time{}
		n := 0
		for n < len(l.retry) && l.post(l.retry[n]) {
			n++
		}
		l.retry = slices.Delete(l.retry, 0, n)
	}
	l.mu.Lock()
	for _, b := range l.batches {
		for b.next < len(b.cmds) && l.post(slot{b, b.next}) {
			b.next++
		}
		if b.next < len(b.cmds) {
			break // no room
		}
	}
	l.mu.Unlock()
	return l.workPos != first
}

// hungEvery is how many polls without progress pass before the clock is read: a poll takes about as long as that.
const hungEvery = 16

// checkHung finds a lane that writes no results any more, not even those of timeouts.
func (l *lane) checkHung(now time.Time) {
	limit := l.e.cfg.Timeout
	if l.load.Load()&(deviceWeight-1) >= flushWeight {
		limit = l.e.timeout(nvme.IOFlush)
	}
	if limit += l.e.cfg.HangTimeout; l.unanswered.Look(now, limit) > limit {
		l.broken = controller.RuntimeError{Err: fmt.Errorf("lane %d has not answered for %v: its kernel does not run", l.index, limit)}
	}
}

// failAll ends every command of the lane with err. The controller is out of service.
func (l *lane) failAll(err error) {
	if !l.hung.Load() {
		_ = l.recall() // what it does not answer ends below
	}
	for tag, s := range l.slots { // of a kernel that does not act on LANEFS_FAIL either
		if s.b != nil {
			l.slots[tag] = slot{}
			l.lost = append(l.lost, lostCmd{slot: s})
		}
	}
	for _, s := range l.lost {
		l.finish(s.slot, fmt.Errorf("nvme: %s: %w", s.cmd(), err))
	}
	for _, s := range l.retry {
		l.finish(s, fmt.Errorf("nvme: %s: %w", s.cmd(), err))
	}
	l.lost, l.retry = l.lost[:0], l.retry[:0]
	l.mu.Lock()
	left := slices.Clone(l.batches)
	l.mu.Unlock()
	for _, b := range left {
		// Once its last command is finished the batch belongs to its caller: it is not read after that.
		for i, n := b.next, len(b.cmds); i < n; i++ {
			b.next = n
			l.finish(slot{b, i}, fmt.Errorf("nvme: %s: %w", &b.cmds[i], err))
		}
	}
}

// recall has the kernel answer every work item, completed or not.
func (l *lane) recall() error {
	l.order(kernels.CommandFail)
	if err := l.e.drv.answered(l); err != nil {
		l.hung.Store(true)
		l.e.c.Log().Error("the lane does not answer", "device", l.e.c.Name(), "lane", l.index, "error", err.Error())
	}
	if l.outstanding() > 0 {
		return controller.RuntimeError{Err: fmt.Errorf("lane %d does not answer: its kernel does not run", l.index)}
	}
	return nil
}
