package blockdev

import "errors"

// ErrFault is the error of an injected fault without an Err of its own.
var ErrFault = errors.New("injected fault")

// Fault says which requests fail, and how. The zero value makes all of them fail for ever.
type Fault struct {
	Op       Op    // only this one; 0: any
	Off, Len Bytes // only requests that touch this range; Len 0: anywhere. A flush touches no range
	Skip     int   // let this many matching requests pass first
	Times    int   // then fail this many; 0: all
	Partial  Bytes // carry out this many bytes of the request before it fails: a torn write
	Err      error // nil: ErrFault

	// Then, if not nil, decides alone, once a first request has failed, which later ones fail: those that touch the same blocks, for
	// example.
	Then func(first Event, r *Request) bool
	// Done, if not nil, says instead of Partial which blocks of a request, counted from 0, are carried out before it fails. A flush is
	// one block.
	Done func(block int) bool
	// Lose makes a failing flush lose what was written before it (see CacheWrites), as Linux's page cache does after a writeback error:
	// reads still see it, and no later flush makes it durable.
	Lose bool
	// Fail, if not nil, gives the error. Hit, if not nil, is called for every request that fails. Neither may call the device.
	Fail func(r *Request) error
	Hit  func(Event)
}

type fault struct {
	Fault
	seen  int
	first *Event // the first request that failed; nil: none yet
}

func (f *fault) err(r *Request) error {
	switch {
	case f.Fail != nil:
		return f.Fail(r)
	case f.Err != nil:
		return f.Err
	}
	return ErrFault
}

// carried says which blocks of r are carried out although it fails; nil: none.
func (f *fault) carried(r *Request, blockSize Bytes) func(block int) bool {
	switch {
	case f.Done != nil:
		return f.Done
	case f.Partial > 0 && r.Op == OpFlush:
		return func(int) bool { return true }
	case f.Partial > 0:
		return func(block int) bool { return Bytes(block+1)*blockSize <= f.Partial }
	}
	return nil
}

// Inject adds a fault; remove takes it away.
func (d *TestDevice) Inject(f Fault) (remove func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	mine := &fault{Fault: f}
	d.faults = append(d.faults, mine)
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		for i, g := range d.faults {
			if g == mine {
				d.faults = append(d.faults[:i:i], d.faults[i+1:]...)
				return
			}
		}
	}
}

// hitLocked is the first fault that r meets, or nil. Every fault counts the request.
func (d *TestDevice) hitLocked(r *Request) *fault {
	var hit *fault
	for _, f := range d.faults {
		if f.countLocked(r) && hit == nil {
			hit = f
		}
	}
	if hit != nil && hit.Hit != nil {
		hit.Hit(eventOf(r))
	}
	return hit
}

// countLocked counts r if it matches, and says whether it fails.
func (f *fault) countLocked(r *Request) bool {
	if f.Then != nil && f.first != nil {
		return f.Then(*f.first, r)
	}
	if f.Op != 0 && f.Op != r.Op {
		return false
	}
	if f.Len > 0 && (r.Op == OpFlush || r.Off >= f.Off+f.Len || r.Off+r.Length() <= f.Off) {
		return false
	}
	f.seen++
	if f.seen <= f.Skip || f.Times > 0 && f.seen > f.Skip+f.Times {
		return false
	}
	if f.first == nil {
		e := eventOf(r)
		f.first = &e
	}
	return true
}

// Event is a request without its buffers.
type Event struct {
	Op       Op
	Off, Len Bytes
	FUA      bool
}

func eventOf(r *Request) Event {
	return Event{Op: r.Op, Off: r.Off, Len: r.Length(), FUA: r.FUA}
}

// Touches says whether e and r have bytes in common. A flush touches none.
func (e Event) Touches(r *Request) bool {
	return r.Op != OpFlush && e.Op != OpFlush && r.Off < e.Off+e.Len && e.Off < r.Off+r.Length()
}

// Observe sets the function that is called after every request that succeeds, before Do returns. nil ends it.
func (d *TestDevice) Observe(f func(Event)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.observer = f
}

func (d *TestDevice) observe(r *Request) {
	d.mu.Lock()
	f := d.observer
	d.mu.Unlock()
	if f != nil {
		f(eventOf(r))
	}
}
