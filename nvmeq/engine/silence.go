package engine

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/lanefs/lanefs/kernels"
)

// The end of all stores to doorbells. A device that was taken away is another driver's soon, at the same addresses.

// gate is held for reading by every launch that outlives its call. It is a leaf, and the last lock before the runtime's.
type gate struct {
	sync.RWMutex
	silent bool // no kernel may ring: those that are launched are told to fail what they find
}

// launch begins the lane's kernel, which runs on its own.
func (d launcher) launch(l *lane, args ...uint64) error {
	d.e.gate.RLock()
	defer d.e.gate.RUnlock()
	if d.e.gate.silent {
		atomic.StoreUint32(&l.control.Command, kernels.CommandFail)
	}
	return l.stream.Launch(d.fn, one, d.block, args...)
}

// Silence implements controller.Queues: kernels that run are told to fail what they have, and waited for.
func (e pairs) Silence() error {
	e.statsMu.RLock() // no failover moves the lanes meanwhile
	defer e.statsMu.RUnlock()
	e.gate.Lock()
	defer e.gate.Unlock()
	e.gate.silent = true
	for _, l := range e.lanes {
		atomic.StoreUint32(&l.control.Command, kernels.CommandFail)
	}
	for _, l := range e.lanes {
		if l.hung.Load() {
			return fmt.Errorf("lane %d's kernel has failed and may still run", l.index)
		}
		if err := l.stream.Wait(launchTimeout); err != nil {
			return fmt.Errorf("waiting for the kernel of lane %d: %w", l.index, err)
		}
	}
	return nil
}
