package blockdev

import "sync/atomic"

// Singly has the methods of a Device for one request, by its Do. A Device that is made of others embeds it.
type Singly struct{ do func(...*Request) error }

// OneByOne gives the methods for a Device whose Do this is.
func OneByOne(do func(reqs ...*Request) error) Singly { return Singly{do} }

// Read fills bufs from off.
func (s Singly) Read(off Bytes, bufs ...Slice) error {
	return s.do(&Request{Op: OpRead, Off: off, Bufs: bufs})
}

// Write writes bufs at off; with fua it is durable when it returns.
func (s Singly) Write(off Bytes, fua bool, bufs ...Slice) error {
	return s.do(&Request{Op: OpWrite, Off: off, FUA: fua, Bufs: bufs})
}

// Flush makes every write that has returned durable.
func (s Singly) Flush() error { return s.do(&Request{Op: OpFlush}) }

// Discard deallocates n bytes at off.
func (s Singly) Discard(off, n Bytes) error {
	return s.do(&Request{Op: OpDiscard, Off: off, Len: n})
}

// WriteZeroes makes n bytes at off zero.
func (s Singly) WriteZeroes(off, n Bytes) error {
	return s.do(&Request{Op: OpWriteZeroes, Off: off, Len: n})
}

// Ending is the end of a Device that is made of others, which stay open.
type Ending struct{ closed atomic.Bool }

// Closed says whether the end has come.
func (e *Ending) Closed() bool { return e.closed.Load() }

// End flushes d, whose end it is, unless it is read-only. A second call is ErrClosed.
func (e *Ending) End(d Device) error {
	if e.closed.Load() {
		return ErrClosed
	}
	var err error
	if !d.Info().ReadOnly {
		err = d.Flush()
	}
	e.closed.Store(true)
	return err
}

// BoundBelow is Bounded by way of the Device whose memory it is, if that is bounded. A Device that is made of others embeds it.
type BoundBelow struct{ below Device }

// BoundBy gives the methods by way of a Device.
func BoundBy(d Device) BoundBelow { return BoundBelow{d} }

// Reserve implements Bounded.
func (b BoundBelow) Reserve(use Use, n int64) error {
	if d, ok := b.below.(Bounded); ok {
		return d.Reserve(use, n)
	}
	return nil
}

// Room implements Bounded.
func (b BoundBelow) Room(use Use) int64 {
	if d, ok := b.below.(Bounded); ok {
		return d.Room(use)
	}
	return 1 << 40
}

// OnShort implements Bounded.
func (b BoundBelow) OnShort(f func()) {
	if d, ok := b.below.(Bounded); ok {
		d.OnShort(f)
	}
}
