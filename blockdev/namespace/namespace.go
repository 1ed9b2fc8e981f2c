// Package namespace implements blockdev.Device by one NVMe namespace behind the lanes of an engine. Open makes a Namespace; Options
// bounds its pinned memory; Full reports a medium without room.
//
// A request takes this way, all of it on the caller's goroutine, unless lone.go has a shorter one for it:
//
//  1. do.go checks the request, and that its buffers are the pool's. A request that is refused has no effect.
//  2. mirror.go copies what is written to device memory, if the CPU cannot address the memory itself.
//  3. split.go cuts the request into pieces, of one command each, at the limits of the controller and the namespace.
//  4. do.go makes the pieces engine.Commands; discards of one Do share Dataset Management commands.
//  5. All commands of a Do go to the engine at once: to one lane where the software controller works on this goroutine, else spread
//     over the queue pairs.
//  6. Each command's error becomes the error of its request. mirror.go copies back what was read.
package namespace

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/internal/pool"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// Options of Open. The zero value has the defaults.
type Options struct {
	Pinned int64 // limit of the pinned memory, in bytes; 0: DefaultPinned
	// Log gets a warning when the medium begins to refuse writes for lack of room, and one when it has refused none for 10 s.
	// nil discards them.
	Log *slog.Logger
}

// DefaultPinned is the limit of the pinned memory, in bytes, unless Options say otherwise.
const DefaultPinned = 1 << 30

// queues is the part of engine.Engine that a Namespace needs.
type queues interface {
	Do(lane int, cmds []engine.Command) error
	Spread(cmds []engine.Command) error
	Lone(cmd controller.LoneCommand) bool
}

// Namespace is a blockdev.Device and blockdev.Bounded: one NVMe namespace behind an engine's queue pairs.
type Namespace struct {
	info   blockdev.Info
	limits limits
	lones  lones
	eng    queues
	*buffers
	place  int             // of its controller among those of buffers
	where  place           // iova, which makes no closure anew
	inline bool            // the controller works on the caller's goroutine, so one lane takes all commands
	deac   bool            // set the Deallocate bit of Write Zeroes: deallocated blocks read as zero
	zeroes blockdev.Buffer // written instead of Write Zeroes if the controller lacks it; else nil
	zeroAt nvme.IOVA

	full    *fullness // of all that were opened together, like times
	times   times
	yields  yields
	batches sync.Pool // of *batch
	closed  atomic.Bool
}

// batch is the memory of one Do.
type batch struct {
	pieces   []piece
	discards []piece
	cmds     []engine.Command
	owners   [][]piece // the pieces of each command
}

// On names a namespace of an engine's controller.
type On struct {
	Engine *engine.Engine
	NSID   uint32
}

// Open opens a namespace of the engine's controller. The caller closes the engine, after the Namespace.
func Open(e *engine.Engine, nsid uint32, opt Options) (*Namespace, error) {
	all, err := OpenAll([]On{{e, nsid}}, opt)
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// OpenAll opens namespaces of several controllers, of one runtime, that have their buffers in common: each takes those of the others, and
// opt.Pinned is the limit of all. So are their Times and Full. The caller closes all.
func OpenAll(on []On, opt Options) (all []*Namespace, err error) {
	if opt.Pinned < 0 {
		return nil, fmt.Errorf("%d bytes of pinned memory: want more", opt.Pinned)
	}
	if opt.Pinned == 0 {
		opt.Pinned = DefaultPinned
	}
	b, full, t := newBuffers(opt.Pinned, on), &fullness{log: opt.Log, pause: roomAgain}, newTimes()
	if opt.Log == nil {
		full.log = slog.New(slog.DiscardHandler)
	}
	if err := b.pool.Reserve(blockdev.ForData, pool.DataShare(opt.Pinned)); err != nil {
		return nil, err
	}
	for i, o := range on {
		d, err := newNamespace(o, opt)
		if err != nil {
			return nil, errors.Join(err, closePrepared(all, b))
		}
		d.buffers, d.place, d.full, d.times = b, i, full, t
		d.where = d.iova
		if err := d.prepare(); err != nil {
			return nil, errors.Join(err, closePrepared(all, b))
		}
		all = append(all, d)
	}
	return all, nil
}

// closePrepared gives back what a namespace has that was opened with one that could not be.
func closePrepared(all []*Namespace, b *buffers) error {
	for _, d := range all {
		if d.zeroes != nil {
			d.zeroes.Release()
		}
	}
	return b.pool.Close()
}

// newNamespace describes a namespace, which has no buffers yet.
func newNamespace(o On, opt Options) (*Namespace, error) {
	e, c := o.Engine, o.Engine.Controller()
	ns, err := c.Namespace(o.NSID)
	if err != nil {
		return nil, err
	}
	id := c.Identify()
	d := &Namespace{
		info: blockdev.Info{
			Name: c.Name(), Model: id.MN, Serial: id.SN, Firmware: id.FR, NSID: o.NSID,
			BlockSize: blockdev.Bytes(ns.BlockSize), Blocks: blockdev.Blocks(ns.Blocks), MaxTransfer: blockdev.Bytes(e.MaxTransfer()),
			Queues: e.Lanes(), Depth: e.Depth(), VolatileCache: id.VWC.Present(), Discard: id.ONCS.DSM(),
			WriteZeroes: id.ONCS.WriteZeroes(), ReadOnly: ns.ReadOnly, Simulated: c.Simulated(),
			Pinned: blockdev.Bytes(opt.Pinned),
		},
		eng:    e,
		inline: c.Inline(),
		deac:   ns.Identify.DLFEAT.WriteZeroesDeallocates() && ns.Identify.DLFEAT.ReadsZero(),
	}
	d.limits = limitsOf(c, ns, d.info)
	if most := e.LoneMost(); most > 0 && d.limits.boundary == 0 {
		d.lones = lones{min(blockdev.Bytes(d.limits.transfer)*d.info.BlockSize, blockdev.Bytes(most)), d.info.Size(), bits.TrailingZeros64(uint64(d.info.BlockSize))}
	}
	return d, nil
}

// limitsOf gathers the limits of commands that the controller and the namespace report.
func limitsOf(c *controller.Controller, ns *controller.Namespace, i blockdev.Info) limits {
	nvm, bs := c.NVM(), i.BlockSize
	l := limits{blockSize: bs, transfer: min(blockdev.Blocks(i.MaxTransfer/bs), maxNLB), boundary: blockdev.Blocks(ns.Identify.NOIOB)}
	if i.WriteZeroes {
		switch {
		case nvm.WZSL > 0 && nvm.WZSL < 32: // NVM §4.1.5.4
			l.zeroes = min(max(blockdev.Blocks(c.Capabilities().MPSMIN()<<nvm.WZSL/int64(bs)), 1), maxNLB)
		case c.Version().AtLeast(2, 0):
			l.zeroes = maxNLB
		default:
			// Before 2.0 the specification has no limit for it, and MDTS does not apply; but some drives want MDTS obeyed.
			l.zeroes = l.transfer
		}
	}
	if i.Discard {
		l.ranges, l.perRange, l.perDSM = maxRanges, math.MaxUint32, math.MaxUint64
		if nvm.DMRL > 0 {
			l.ranges = int(nvm.DMRL)
		}
		if nvm.DMRSL > 0 {
			l.perRange = blockdev.Blocks(nvm.DMRSL)
		}
		if nvm.DMSL > 0 {
			l.perDSM = blockdev.Blocks(nvm.DMSL)
			l.perRange = min(l.perRange, l.perDSM)
		}
	}
	return l
}

// prepare makes the buffer of zeroes for a controller without Write Zeroes.
func (d *Namespace) prepare() error {
	d.batches.New = func() any { return new(batch) }
	if d.limits.transfer == 0 {
		return fmt.Errorf("%s: a command carries %d bytes, less than a block of %d", d.info.Name, d.info.MaxTransfer, d.info.BlockSize)
	}
	if d.limits.zeroes > 0 || d.info.ReadOnly {
		return nil
	}
	size := min(blockdev.Bytes(d.limits.transfer)*d.limits.blockSize, 256<<10)
	b, err := d.pool.Alloc(int(size))
	if err != nil {
		return err
	}
	if b.Bytes() == nil {
		b.Release()
		return fmt.Errorf("%s: no Write Zeroes, and data memory that the CPU cannot reach to write zeroes from", d.info.Name)
	}
	clear(b.Bytes())
	if m := mirrorOf(b.(*pool.Buffer)); m != nil {
		if err := m.Push(int64(b.(*pool.Buffer).Offset()), int64(size)); err != nil {
			b.Release()
			return err
		}
	}
	d.zeroes, d.zeroAt, d.limits.zeroes = b, d.iova(b.Slice(0, 0)), blockdev.Blocks(size/d.limits.blockSize)
	return nil
}

// Info describes the namespace.
func (d *Namespace) Info() blockdev.Info { return d.info }

// Pinned is how many bytes are pinned now.
func (d *Namespace) Pinned() int64 { return d.pool.Size() }

// Alloc gives a buffer of at least n bytes. See blockdev.Device.
func (d *Namespace) Alloc(n int, use ...blockdev.Use) (blockdev.Buffer, error) {
	return d.pool.Alloc(n, use...)
}

// Reserve keeps memory for a use. See blockdev.Bounded.
func (d *Namespace) Reserve(use blockdev.Use, n int64) error { return d.pool.Reserve(use, n) }

// Room is how many bytes a use can have. See blockdev.Bounded.
func (d *Namespace) Room(use blockdev.Use) int64 { return d.pool.Room(use) }

// OnShort has f called when memory is short. See blockdev.Bounded.
func (d *Namespace) OnShort(f func()) { d.pool.OnShort(f) }

// Read fills bufs from off.
func (d *Namespace) Read(off blockdev.Bytes, bufs ...blockdev.Slice) error {
	return d.Do(&blockdev.Request{Op: blockdev.OpRead, Off: off, Bufs: bufs})
}

// Write writes bufs at off; with fua it is durable when it returns.
func (d *Namespace) Write(off blockdev.Bytes, fua bool, bufs ...blockdev.Slice) error {
	return d.Do(&blockdev.Request{Op: blockdev.OpWrite, Off: off, FUA: fua, Bufs: bufs})
}

// Flush makes every write that has returned durable.
func (d *Namespace) Flush() error { return d.Do(&blockdev.Request{Op: blockdev.OpFlush}) }

// Discard deallocates n bytes at off; what they read as is undefined.
func (d *Namespace) Discard(off, n blockdev.Bytes) error {
	return d.Do(&blockdev.Request{Op: blockdev.OpDiscard, Off: off, Len: n})
}

// WriteZeroes makes n bytes at off zero.
func (d *Namespace) WriteZeroes(off, n blockdev.Bytes) error {
	return d.Do(&blockdev.Request{Op: blockdev.OpWriteZeroes, Off: off, Len: n})
}

// Close flushes and unpins the memory, which is left to the last of those that were opened together. Requests must have ended. A buffer that
// was not released is an error.
func (d *Namespace) Close() error {
	var flushed error
	if !d.closed.Load() && !d.info.ReadOnly {
		flushed = d.Flush()
	}
	if d.closed.Swap(true) {
		return blockdev.ErrClosed
	}
	if d.zeroes != nil {
		d.zeroes.Release()
	}
	if d.users.Add(-1) > 0 {
		return flushed
	}
	d.full.close()
	if err := d.pool.Close(); err != nil {
		return errors.Join(flushed, fmt.Errorf("%s: %w", d.info.Name, err))
	}
	return flushed
}
