package blockdev

import "sync"

// hold is a fault that makes requests wait instead.
type hold struct {
	fault
	held chan struct{} // receives a value when a request begins to wait
	open chan struct{} // closed by release
}

// Hold makes the requests that f matches wait before they are carried out, as on a very slow medium. held receives a value when one
// waits. release lets all go on, and may be called more than once.
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
