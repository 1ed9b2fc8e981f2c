package blockdevtest

import (
	"errors"

	"github.com/lanefs/lanefs/blockdev"
)

// ErrFault is what an injected fault says unless it is given something else.
var ErrFault = errors.New("injected fault")

// Fault makes requests fail. The zero value makes all of them fail for ever.
type Fault struct {
	Op       blockdev.Op    // only this one; 0: any
	Off, Len blockdev.Bytes // only requests that touch this range; Len 0: anywhere. A flush touches no range
	Skip     int            // let this many matching requests pass first
	Times    int            // then fail this many; 0: all
	Partial  blockdev.Bytes // carry out this many bytes of the request before it fails: a torn write
	Err      error          // nil: ErrFault
}

type fault struct {
	Fault
	seen int
}

func (f *fault) err() error {
	if f.Err != nil {
		return f.Err
	}
	return ErrFault
}

// Inject adds a fault and returns what removes it.
func (d *Device) Inject(f Fault) (remove func()) {
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
func (d *Device) hitLocked(r *blockdev.Request) *fault {
	var hit *fault
	for _, f := range d.faults {
		if f.countLocked(r) && hit == nil {
			hit = f
		}
	}
	return hit
}

// countLocked counts r if it matches, and says whether it is one of those meant.
func (f *fault) countLocked(r *blockdev.Request) bool {
	if f.Op != 0 && f.Op != r.Op {
		return false
	}
	if f.Len > 0 && (r.Op == blockdev.OpFlush || r.Off >= f.Off+f.Len || r.Off+r.Length() <= f.Off) {
		return false
	}
	f.seen++
	return f.seen > f.Skip && (f.Times == 0 || f.seen <= f.Skip+f.Times)
}

// Event is a request that succeeded.
type Event struct {
	Op       blockdev.Op
	Off, Len blockdev.Bytes
	FUA      bool
}

// Observe calls f after every request that succeeds, before Do returns. nil ends it.
func (d *Device) Observe(f func(Event)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.observer = f
}

func (d *Device) observe(r *blockdev.Request) {
	d.mu.Lock()
	f := d.observer
	d.mu.Unlock()
	if f != nil {
		f(Event{Op: r.Op, Off: r.Off, Len: r.Length(), FUA: r.FUA})
	}
}
