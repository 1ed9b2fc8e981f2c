package engine

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/lanefs/lanefs/kernels"
	"github.com/lanefs/lanefs/nvmeq/controller"
)

// pairs implements controller.Queues: by it an engine, the owner of queue pairs, takes part in resets of its controller, and in the
// failover to another runtime.
type pairs struct{ *Engine }

var _ controller.Queues = pairs{}

func (e pairs) Hold() {
	for _, l := range e.lanes {
		l.drive.Lock()
	}
}

func (e pairs) Release() {
	for _, l := range e.lanes {
		l.handOver()
	}
}

func (e pairs) Completed() bool {
	for _, l := range e.lanes {
		if l.rebuilds == 0 {
			return true
		}
	}
	return false
}

func (e pairs) Recall() error {
	for _, l := range e.lanes {
		l.created = false
		if err := l.recall(); err != nil {
			return err
		}
	}
	return nil
}

func (e pairs) Create() error {
	for _, l := range e.lanes {
		if err := l.create(); err != nil {
			return err
		}
	}
	return nil
}

func (e pairs) Resume(failure error) {
	for _, l := range e.lanes {
		l.rebuilds = 1
		l.lastResult = time.Time{}
		if failure != nil {
			l.failAll(failure)
		} else {
			l.settle()
			l.refuseWrites()
			l.resend()
		}
	}
}

func (e pairs) Quiesced(f func() error) error {
	if d, ok := e.drv.(*residentDriver); ok { // a failover to a device's runtime does not happen
		return d.quiesced(f)
	}
	return f()
}

func (e pairs) Abandon() {
	for _, l := range e.lanes {
		l.created = false
		l.hung.Store(true)
		atomic.StoreUint32(&l.control.Command, kernels.CommandFail)
	}
}

func (e pairs) Ended() bool {
	all := true
	for _, l := range e.lanes {
		done, err := l.stream.Done()
		all = all && (done || err != nil)
	}
	return all
}

// Move keeps the commands that were under way, to be sent again.
func (e pairs) Move(ended bool) error {
	qids := make([]uint16, len(e.lanes))
	for i, l := range e.lanes {
		qids[i] = l.qid
	}
	if !ended {
		fresh := e.c.AllocQIDs(len(qids))
		if len(fresh) < len(qids) {
			return fmt.Errorf("%d queue pairs are free and %d are needed: the old ones' doorbells may still be rung by a kernel that hangs",
				len(fresh), len(qids))
		}
		qids = fresh
	}
	var w resources
	g, err := w.build(e.Engine, len(qids))
	if err != nil {
		return errors.Join(err, w.close(e.c))
	}
	old := e.resources
	e.statsMu.Lock()
	for i, l := range e.lanes {
		l.reclaim()
		l.base = l.stats()
		if err = l.place(&w, g, qids[i]); err != nil {
			break
		}
	}
	e.resources = w
	e.statsMu.Unlock()
	if err != nil {
		return err
	}
	if err := old.closeQueues(); err != nil {
		return err
	}
	for _, l := range e.lanes {
		l.hung.Store(false)
		if err := l.create(); err != nil {
			return err
		}
	}
	return nil
}
