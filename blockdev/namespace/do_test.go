package namespace

import (
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/internal/pool"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// fakeEngine records commands and ends each as fail says.
type fakeEngine struct {
	fail func(c *engine.Command) error
	all  error // refuse everything

	mu     sync.Mutex
	seen   []engine.Command
	spread int
}

func (e *fakeEngine) Do(_ int, cmds []engine.Command) error {
	if e.all != nil {
		return e.all
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	var first error
	for i := range cmds {
		c := &cmds[i]
		e.seen = append(e.seen, *c)
		c.Latency = time.Microsecond
		if e.fail != nil {
			c.Err = e.fail(c)
		}
		if first == nil {
			first = c.Err
		}
	}
	return first
}

func (e *fakeEngine) Lone(controller.LoneCommand) bool { return false }

func (e *fakeEngine) Spread(cmds []engine.Command) error {
	e.spread++
	return e.Do(0, cmds)
}

// fakeChunk is Go memory with an invented IOVA.
type fakeChunk struct {
	b  []byte
	at nvme.IOVA
}

func (c *fakeChunk) Bytes() []byte       { return c.b }
func (c *fakeChunk) Addresses() []uint64 { return []uint64{uint64(c.at)} }
func (c *fakeChunk) Len() int64          { return int64(len(c.b)) }
func (c *fakeChunk) Close() error        { return nil }

// testNamespace is a namespace of 1 GiB in blocks of 512 over the fake.
func testNamespace(t *testing.T, l limits, info blockdev.Info) (*Namespace, *fakeEngine) {
	p := pool.New(64<<20, func(n int64) (pool.Memory, error) { return &fakeChunk{make([]byte, n), 1 << 30}, nil })
	e := &fakeEngine{}
	l.blockSize, info.BlockSize, info.Blocks, info.NSID = 512, 512, 1<<21, 3
	d := &Namespace{info: info, limits: l, eng: e, buffers: &buffers{pool: p}, full: &fullness{pause: roomAgain, log: slog.New(slog.NewTextHandler(t.Output(), nil))}}
	d.where, d.times = d.iova, newTimes()
	d.users.Store(1)
	require.NoError(t, d.prepare())
	return d, e
}

func TestCommands(t *testing.T) {
	d, e := testNamespace(t, limits{transfer: 16, zeroes: 32, ranges: 2, perRange: 100, perDSM: 150},
		blockdev.Info{Discard: true, WriteZeroes: true, VolatileCache: true, Simulated: true})
	d.deac, d.inline = true, true
	b, err := d.Alloc(16384)
	require.NoError(t, err)
	at := d.iova(b.Slice(0, 0))
	require.NoError(t, d.Do(
		&blockdev.Request{Op: blockdev.OpRead, Off: 512, Bufs: []blockdev.Slice{b.Slice(512, 512)}, FUA: true},
		&blockdev.Request{Op: blockdev.OpDiscard, Off: 0, Len: 512 * 150},
		&blockdev.Request{Op: blockdev.OpWrite, Off: 1024, Bufs: []blockdev.Slice{b.Slice(0, 8192+512)}, FUA: true},
		&blockdev.Request{Op: blockdev.OpWriteZeroes, Off: 0, Len: 512},
		&blockdev.Request{Op: blockdev.OpFlush},
		&blockdev.Request{Op: blockdev.OpDiscard, Off: 512 * 1000, Len: 512},
	))
	require.Equal(t, []engine.Command{
		{Op: nvme.IORead, NSID: 3, SLBA: 1, NLB: 1, Data: at + 512, Len: 512},
		{Op: nvme.IOWrite, NSID: 3, SLBA: 2, NLB: 16, Data: at, Len: 8192, FUA: true},
		{Op: nvme.IOWrite, NSID: 3, SLBA: 18, NLB: 1, Data: at + 8192, Len: 512, FUA: true},
		{Op: nvme.IOWriteZeroes, NSID: 3, SLBA: 0, NLB: 1, Deallocate: true},
		{Op: nvme.IOFlush, NSID: 3},
		{Op: nvme.IODSM, NSID: 3, Ranges: []nvme.Range{{SLBA: 0, NLB: 100}, {SLBA: 100, NLB: 50}}},
		{Op: nvme.IODSM, NSID: 3, Ranges: []nvme.Range{{SLBA: 1000, NLB: 1}}},
	}, e.seen)
	require.Zero(t, e.spread)
}

func TestRealControllersAreSpread(t *testing.T) {
	d, e := testNamespace(t, limits{transfer: 16, zeroes: 16}, blockdev.Info{WriteZeroes: true})
	require.NoError(t, d.WriteZeroes(0, 512*64))
	require.Equal(t, 1, e.spread)
	require.NoError(t, d.Flush(), "without a volatile cache there is nothing to flush")
	require.Len(t, e.seen, 4)
}

func TestZeroesWithoutWriteZeroes(t *testing.T) {
	d, e := testNamespace(t, limits{transfer: 16}, blockdev.Info{})
	require.NoError(t, d.Do(&blockdev.Request{Op: blockdev.OpWriteZeroes, Off: 512, Len: 512 * 20, FUA: true}))
	require.Equal(t, []engine.Command{
		{Op: nvme.IOWrite, NSID: 3, SLBA: 1, NLB: 16, Data: d.zeroAt, Len: 8192, FUA: true},
		{Op: nvme.IOWrite, NSID: 3, SLBA: 17, NLB: 4, Data: d.zeroAt, Len: 2048, FUA: true},
	}, e.seen)
	require.NoError(t, d.Close())
}

func TestErrorsComeBackToTheirRequests(t *testing.T) {
	d, e := testNamespace(t, limits{transfer: 4, zeroes: 4, ranges: 256, perRange: 100, perDSM: 1000},
		blockdev.Info{Discard: true, WriteZeroes: true, Simulated: true})
	boom := errors.New("boom")
	e.fail = func(c *engine.Command) error {
		if c.SLBA == 8 || c.Op == nvme.IODSM {
			return boom
		}
		return nil
	}
	zero := &blockdev.Request{Op: blockdev.OpWriteZeroes, Len: 512 * 20}
	fine := &blockdev.Request{Op: blockdev.OpWriteZeroes, Off: 512 * 100, Len: 512 * 20}
	gone := &blockdev.Request{Op: blockdev.OpDiscard, Off: 512 * 7, Len: 512 * 150}
	err := d.Do(fine, zero, gone)
	require.Equal(t, &blockdev.Error{Op: blockdev.OpWriteZeroes, Off: 8 * 512, Len: 4 * 512, LBA: 8, Err: boom}, err)
	require.Equal(t, err, zero.Err)
	require.NoError(t, fine.Err)
	require.Equal(t, &blockdev.Error{Op: blockdev.OpDiscard, Off: 7 * 512, Len: 100 * 512, LBA: 7, Err: boom}, gone.Err)

	// When the engine refuses the call, no request has succeeded.
	e.all = engine.ErrClosed
	require.ErrorIs(t, d.Do(fine, zero), blockdev.ErrClosed)
	require.ErrorIs(t, fine.Err, blockdev.ErrClosed)
	require.ErrorIs(t, zero.Err, blockdev.ErrClosed)
}

func TestHugeRequestsLeaveNoMemoryBehind(t *testing.T) {
	d, e := testNamespace(t, limits{transfer: 1, zeroes: 1}, blockdev.Info{WriteZeroes: true})
	require.NoError(t, d.WriteZeroes(0, 512*5000))
	require.Len(t, e.seen, 5000)
	b := d.batches.Get().(*batch)
	require.LessOrEqual(t, cap(b.cmds), 1024)
}
