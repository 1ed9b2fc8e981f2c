package engine

import (
	"fmt"
	"sync"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/kernels"
)

// The end of all stores to doorbells. A device that was taken away is another driver's soon, at the same addresses.

// gate is held for reading by every launch that outlives its call. It is a leaf, and the last lock before the runtime's.
type gate struct {
	sync.RWMutex
	silent bool // no kernel may ring: those that are launched are told to fail what they find
}

// launch begins the kernel of some lanes, which runs on its own.
func (d *launcher) launch(lanes []*lane, s gpu.Stream, grid, block gpu.Dim3, args ...uint64) error {
	d.e.gate.RLock()
	defer d.e.gate.RUnlock()
	if d.e.gate.silent {
		for _, l := range lanes {
			l.order(kernels.CommandFail)
		}
	}
	return s.Launch(d.fn, grid, block, args...)
}

// Silence implements controller.Queues: kernels that run are told to fail what they have, and waited for.
func (e pairs) Silence() error {
	e.statsMu.RLock() // no failover moves the lanes meanwhile
	defer e.statsMu.RUnlock()
	e.gate.Lock()
	defer e.gate.Unlock()
	e.gate.silent = true
	for _, l := range e.lanes {
		l.order(kernels.CommandFail)
	}
	for _, l := range e.lanes {
		if l.hung.Load() {
			return fmt.Errorf("lane %d's kernel has failed and may still run", l.index)
		}
	}
	return e.drv.wait(launchTimeout)
}
