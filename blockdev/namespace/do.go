package namespace

import (
	"errors"
	"fmt"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/latency"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// Do carries out the requests, concurrently and in no defined order. See blockdev.Device.
func (d *Namespace) Do(reqs ...*blockdev.Request) error {
	if len(reqs) == 0 {
		return nil
	}
	if d.lones.most > 0 && len(reqs) == 1 && d.lone(reqs[0]) {
		return nil
	}
	var begin, end latency.Clock
	defer d.times.device.StartBy(&begin, kindOf(reqs)).EndBy(&end)
	b := d.batches.Get().(*batch)
	defer d.recycle(b)
	for _, r := range reqs {
		if r.Err = d.admit(r); r.Err != nil {
			continue
		}
		if d.mirrors.Load() {
			if err := d.push(r); err != nil {
				r.Err = r.Fail(d.info, err)
				continue
			}
		}
		switch {
		case r.Op == blockdev.OpDiscard:
			b.discards = d.limits.split(b.discards, r, d.where)
		case r.Op == blockdev.OpFlush && !d.info.VolatileCache:
			// Without a volatile cache every completed write is durable.
		default:
			b.pieces = d.limits.split(b.pieces, r, d.where)
		}
	}
	d.command(b)
	if d.inline { // nothing waits, and nothing is copied, between the call and its commands
		d.submit(b, &begin, &end)
	} else {
		d.submit(b, &latency.Clock{}, &latency.Clock{})
	}
	var first error
	for _, r := range reqs {
		if r.Err == nil && d.mirrors.Load() {
			if err := d.pull(r); err != nil {
				r.Err = r.Fail(d.info, err)
			}
		}
		if r.Err != nil {
			d.full.note(r.Err)
			first = blockdev.Worse(first, r.Err)
		}
	}
	return first
}

// admit returns why r cannot be sent, or nil.
func (d *Namespace) admit(r *blockdev.Request) error {
	if err := r.Check(d.info); err != nil {
		return err
	}
	if d.closed.Load() {
		return r.Fail(d.info, blockdev.ErrClosed)
	}
	if !d.owns(r) {
		return r.Fail(d.info, fmt.Errorf("%w: a buffer of another device", blockdev.ErrInvalid))
	}
	return nil
}

// command makes commands of the pieces. b.owners[i] are the pieces of b.cmds[i].
func (d *Namespace) command(b *batch) {
	for i, p := range b.pieces {
		c := engine.Command{NSID: d.info.NSID, SLBA: uint64(p.lba), NLB: uint32(p.n), FUA: p.req.FUA && p.op != blockdev.OpRead}
		bytes := uint32(blockdev.Bytes(p.n) * d.limits.blockSize)
		switch {
		case p.op == blockdev.OpRead:
			c.Op, c.Data, c.Len = nvme.IORead, p.iova, bytes
		case p.op == blockdev.OpWrite:
			c.Op, c.Data, c.Len = nvme.IOWrite, p.iova, bytes
		case p.op == blockdev.OpFlush:
			c = engine.Command{Op: nvme.IOFlush, NSID: d.info.NSID}
		case d.zeroes != nil:
			c.Op, c.Data, c.Len = nvme.IOWrite, d.zeroAt, bytes
		default:
			c.Op, c.Deallocate = nvme.IOWriteZeroes, d.deac
		}
		b.cmds, b.owners = append(b.cmds, c), append(b.owners, b.pieces[i:i+1])
	}
	if len(b.discards) == 0 {
		return
	}
	for _, g := range d.limits.gather(b.discards) {
		c := engine.Command{Op: nvme.IODSM, NSID: d.info.NSID}
		for _, p := range g {
			c.Ranges = append(c.Ranges, nvme.Range{SLBA: uint64(p.lba), NLB: uint32(p.n)})
		}
		b.cmds, b.owners = append(b.cmds, c), append(b.owners, g)
	}
}

// submit carries out the commands and sets each request's Err.
func (d *Namespace) submit(b *batch, begin, end *latency.Clock) {
	if len(b.cmds) == 0 {
		return
	}
	op := d.times.begin(b.cmds, begin)
	var err error
	if d.inline {
		err = d.eng.Do(engine.AnyLane, b.cmds)
	} else {
		err = d.eng.Spread(b.cmds)
	}
	d.times.end(op, b.cmds, end)
	if d.inline {
		d.yields.ended(blockdev.Bytes(b.cmds[0].Len), end)
	}
	if err == nil {
		return
	}
	for i := range b.cmds {
		why := b.cmds[i].Err
		if why == nil && b.cmds[i].Latency == 0 {
			why = err // without a completion: the engine refused the whole call
		}
		if why == nil {
			continue
		}
		why = causeOf(why)
		for _, p := range b.owners[i] {
			p.req.Err = blockdev.Worse(p.req.Err, &blockdev.Error{Op: p.op, Off: blockdev.Bytes(p.lba) * d.limits.blockSize, Len: blockdev.Bytes(p.n) * d.limits.blockSize, LBA: p.lba, Err: why})
		}
	}
}

// causeOf translates an error of nvmeq to one that callers of a Device can test for.
func causeOf(err error) error {
	var s *nvme.StatusError
	switch {
	case errors.Is(err, engine.ErrClosed):
		return blockdev.ErrClosed
	case errors.As(err, &s) && s.Status.Is(nvme.StatusCapacity):
		return &refusedError{err, blockdev.ErrNoSpace}
	case errors.As(err, &s) && s.Status.Is(nvme.StatusWriteProtected):
		return &refusedError{err, blockdev.ErrReadOnly}
	}
	return err
}

// refusedError is a status that says why a write was refused (Base §3.3.3.2.1.2): Capacity Exceeded is ErrNoSpace, Namespace is Write Protected is ErrReadOnly.
type refusedError struct {
	err  error
	kind error
}

func (e *refusedError) Error() string        { return e.err.Error() }
func (e *refusedError) Unwrap() error        { return e.err }
func (e *refusedError) Is(target error) bool { return target == e.kind }

// recycle keeps the batch's memory for the next Do, unless it has become large.
func (d *Namespace) recycle(b *batch) {
	const many = 1024
	if cap(b.cmds) > many || cap(b.pieces) > many || cap(b.discards) > many {
		return
	}
	clear(b.pieces)
	clear(b.discards)
	clear(b.cmds)
	clear(b.owners)
	b.pieces, b.discards, b.cmds, b.owners = b.pieces[:0], b.discards[:0], b.cmds[:0], b.owners[:0]
	d.batches.Put(b)
}
