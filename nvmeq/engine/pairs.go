package engine

import (
	"github.com/lanefs/lanefs/gpu/nap"
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
		l.unanswered = nap.Wait{}
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
	e.statsMu.RLock()
	d, ok := e.drv.(*residentDriver) // a failover to a device's runtime does not happen
	e.statsMu.RUnlock()
	if ok {
		return d.quiesced(f)
	}
	return f()
}
