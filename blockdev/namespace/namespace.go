// Package namespace is the blockdev.Device of one NVMe namespace. It splits what is too large for a command and spreads what is left
// over the queue pairs; its buffers are pinned memory.
package namespace

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/pool"
	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// A request's way: Check, then split into pieces, one engine.Command each, then all commands of all requests of a Do go to
// the engine at once, and each command's error comes back to its request. Everything runs on the caller's goroutine; on
// a real controller the commands are spread over the queue pairs.

// Options of Open. The zero value is good.
type Options struct {
	Pinned int64 // bytes of pinned memory at most; 0: DefaultPinned
	// Log gets a warning when the medium begins to refuse writes for lack of room, and one when it has refused none for 10 s.
	// nil discards them.
	Log *slog.Logger
}

// DefaultPinned is how much memory is pinned at most unless told otherwise.
const DefaultPinned = 1 << 30

// queues is what a Namespace needs of engine.Engine.
type queues interface {
	Do(lane int, cmds []engine.Command) error
	Spread(cmds []engine.Command) error
}

// Namespace is a Device: one namespace behind an engine's queue pairs.
type Namespace struct {
	info   blockdev.Info
	limits limits
	eng    queues
	pool   *pool.Pool
	borrow func(gpu.Memory) (pool.Memory, error)
	inline bool            // more lanes would only mean more doorbells
	deac   bool            // Write Zeroes may deallocate: the blocks read as zero all the same
	zeroes blockdev.Buffer // what is written where Write Zeroes does not exist; nil where it does
	zeroAt nvme.IOVA

	full    fullness
	batches sync.Pool // of *batch
	closed  atomic.Bool
}

// batch is what one Do needs besides the requests.
type batch struct {
	pieces   []piece
	discards []piece
	cmds     []engine.Command
	owners   [][]piece // of each command
}

// Open presents a namespace of the engine's controller. The engine stays the caller's, who closes it after the device.
func Open(e *engine.Engine, nsid uint32, opt Options) (*Namespace, error) {
	c := e.Controller()
	ns, err := c.Namespace(nsid)
	if err != nil {
		return nil, err
	}
	if opt.Pinned < 0 {
		return nil, fmt.Errorf("%d bytes of pinned memory: want more", opt.Pinned)
	}
	if opt.Pinned == 0 {
		opt.Pinned = DefaultPinned
	}
	id := c.Identify()
	d := &Namespace{
		info: blockdev.Info{
			Name: c.Name(), Model: id.MN, Serial: id.SN, Firmware: id.FR, NSID: nsid,
			BlockSize: blockdev.Bytes(ns.BlockSize), Blocks: blockdev.Blocks(ns.Blocks), MaxTransfer: blockdev.Bytes(e.MaxTransfer()),
			Queues: e.Lanes(), Depth: e.Depth(), VolatileCache: id.VWC.Present(), Discard: id.ONCS.DSM(),
			WriteZeroes: id.ONCS.WriteZeroes(), ReadOnly: ns.ReadOnly, Simulated: c.Simulated(),
			Pinned: blockdev.Bytes(opt.Pinned),
		},
		eng:    e,
		inline: c.Inline(),
		pool: pool.New(opt.Pinned, func(n int64) (pool.Memory, error) {
			m, err := c.AllocData(n)
			if err != nil {
				return nil, err
			}
			return m, nil
		}),
		borrow: func(g gpu.Memory) (pool.Memory, error) {
			m, err := c.Borrow(g)
			if err != nil {
				return nil, err
			}
			return m, nil
		},
		deac: ns.Identify.DLFEAT.WriteZeroesDeallocates() && ns.Identify.DLFEAT.ReadsZero(),
	}
	d.full.pause, d.full.log = roomAgain, opt.Log
	if opt.Log == nil {
		d.full.log = slog.New(slog.DiscardHandler)
	}
	if err := d.pool.Reserve(blockdev.ForData, pool.DataShare(opt.Pinned)); err != nil {
		return nil, err
	}
	d.limits = limitsOf(c, ns, d.info)
	if err := d.prepare(); err != nil {
		return nil, err
	}
	return d, nil
}

// limitsOf gathers what the controller says about the sizes of commands.
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
			// Before 2.0 nothing is said about it, and MDTS does not apply; drives were seen that want it obeyed.
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

// prepare makes the zeroes that are written where the controller has no Write Zeroes.
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
	d.zeroes, d.zeroAt, d.limits.zeroes = b, iova(b.Slice(0, 0)), blockdev.Blocks(size/d.limits.blockSize)
	return nil
}

// Info is what is true of the namespace while it is open.
func (d *Namespace) Info() blockdev.Info { return d.info }

// Pinned is how many bytes of pinned memory are mapped for the controller now.
func (d *Namespace) Pinned() int64 { return d.pool.Size() }

// Alloc gives a buffer of at least n bytes.
func (d *Namespace) Alloc(n int, use ...blockdev.Use) (blockdev.Buffer, error) {
	return d.pool.Alloc(n, use...)
}

// Reserve keeps memory for a use. See Bounded.
func (d *Namespace) Reserve(use blockdev.Use, n int64) error { return d.pool.Reserve(use, n) }

// Room is how much a use can have. See Bounded.
func (d *Namespace) Room(use blockdev.Use) int64 { return d.pool.Room(use) }

// OnShort has f called when memory is short. See Bounded.
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

// Discard says that n bytes at off are not needed any more; what they read as is not defined.
func (d *Namespace) Discard(off, n blockdev.Bytes) error {
	return d.Do(&blockdev.Request{Op: blockdev.OpDiscard, Off: off, Len: n})
}

// WriteZeroes makes n bytes at off zero.
func (d *Namespace) WriteZeroes(off, n blockdev.Bytes) error {
	return d.Do(&blockdev.Request{Op: blockdev.OpWriteZeroes, Off: off, Len: n})
}

// Close flushes, and gives the pinned memory back. Requests under way must have ended; a buffer that was not released
// is an error.
func (d *Namespace) Close() error {
	var flushed error
	if !d.closed.Load() && !d.info.ReadOnly {
		flushed = d.Flush()
	}
	if d.closed.Swap(true) {
		return blockdev.ErrClosed
	}
	d.full.close()
	if d.zeroes != nil {
		d.zeroes.Release()
	}
	if err := d.pool.Close(); err != nil {
		return errors.Join(flushed, fmt.Errorf("%s: %w", d.info.Name, err))
	}
	return flushed
}
