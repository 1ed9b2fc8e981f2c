package blockdev

import "sync"

// hold is a fault that makes requests wait instead.
type hold struct {
	fault
	held chan struct{} // has a value once a request waits
	open chan struct{} // closed by release
}

// Hold makes the requests that f describes wait, before anything of them is done, as if the medium had become very slow.
// held has a value once one waits; release lets all of them go on, and may be called again.
func (d *TestDevice) Hold(f Fault) (held <-chan struct{}, release func()) {
	h := &hold{fault: fault{Fault: f}, held: make(chan struct{}, 1), open: make(chan struct{})}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.holds = append(d.holds, h)
	return h.held, sync.OnceFunc(func() { close(h.open) })
}

// await waits for the holds that r meets to be released.
func (d *TestDevice) await(r *Request) {
	d.mu.Lock()
	var met []*hold
	for _, h := range d.holds {
		if h.countLocked(r) {
			met = append(met, h)
		}
	}
	d.mu.Unlock()
	for _, h := range met {
		select {
		case h.held <- struct{}{}:
		default:
		}
		<-h.open
	}
}
