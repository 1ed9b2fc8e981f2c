package blockdev

import "errors"

// ErrFault is what an injected fault says unless it is given something else.
var ErrFault = errors.New("injected fault")

// Fault makes requests fail. The zero value makes all of them fail for ever.
type Fault struct {
	Op       Op    // only this one; 0: any
	Off, Len Bytes // only requests that touch this range; Len 0: anywhere. A flush touches no range
	Skip     int   // let this many matching requests pass first
	Times    int   // then fail this many; 0: all
	Partial  Bytes // carry out this many bytes of the request before it fails: a torn write
	Err      error // nil: ErrFault

	// Then, if not nil, says which requests after the first that failed do, too, whatever Times and the other conditions
	// say: those that touch what has gone bad, for example.
	Then func(first Event, r *Request) bool
	// Done, if not nil, says which of the device's blocks of a request are carried out before it fails, counted from 0,
	// and Partial says nothing. A flush is one block.
	Done func(block int) bool
	// Lose has a flush that fails lose what it was to make durable (see CacheWrites), as the system's cache does: reads go on to see
	// it, and no later flush brings it back.
	Lose bool
	// Fail, if not nil, gives the error; Hit, if not nil, is told of every request that fails. Neither may call the device.
	Fail func(r *Request) error
	Hit  func(Event)
}

type fault struct {
	Fault
	seen  int
	first *Event // that failed
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

// carried says which blocks of r are carried out before it fails; nil: none.
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

// Inject adds a fault and returns what removes it.
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

// hitLocked is the fault that r meets, if any. Every fault counts the request, whichever fails it.
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

// countLocked counts r if it matches, and says whether it is one of those meant.
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

// Event is a request, for those who look on.
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

// Observe calls f after every request that succeeds, before Do returns. nil ends it.
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
