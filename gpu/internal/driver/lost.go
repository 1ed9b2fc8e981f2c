package driver

import "time"

// A context that an error has made unusable is lost to the process, with all that is in it: every call fails from then on, the kernels have ended. With Config.Lose
// it is released then, though much of it is open yet. Others wait for that: MPS takes no new program until those that had the
// fault have ended or have released their contexts (NVIDIA, Multi-Process Service, "Memory Protection"; measured: the release takes 60 ms, and
// until then cuInit of any program of that user fails with CUDA_ERROR_MPS_SERVER_NOT_READY), and nobody has the memory that lies in it.
//
// So no call may come after it. Handles are the library's pointers, and it need not find out that they are stale: Status looks first. A call that is
// under way holds mu, for which the release waits, if need be for ever.
//
// Host memory that others work with is pages of the process's own, which are registered: the release takes the registration only. Memory that the library has
// allocated (API.HostAlloc) goes with the context, and whoever looked at it would be ended by a signal.

// lostLook is how often it is asked whether the device is lost, which a process that has nothing to do there does not hear of otherwise.
const lostLook = 2 * time.Second

// lose notes that a call has found the device lost.
func (d *Device) lose(e *Error) {
	if !d.cfg.Lose || !d.lost.CompareAndSwap(nil, e) {
		return
	}
	go func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if !d.closed {
			_ = d.releaseLocked() // Close says it
		}
	}()
}

// releaseLocked lets go of the device, once.
func (d *Device) releaseLocked() error {
	if d.released || d.cfg.Release == nil {
		return d.releaseErr
	}
	d.released, d.releaseErr = true, d.cfg.Release()
	return d.releaseErr
}

// Lost implements gpu.Losable.
func (d *Device) Lost() error {
	if e := d.lost.Load(); e != nil {
		return e
	}
	return nil
}

// watch asks until the device is lost or closed.
func (d *Device) watch() {
	tick := time.NewTicker(lostLook)
	defer tick.Stop()
	for d.Lost() == nil {
		select {
		case <-d.ended:
			return
		case <-tick.C:
			_, _ = d.Status(d.api.StreamQuery, 0) // of the stream that nobody uses
		}
	}
}
