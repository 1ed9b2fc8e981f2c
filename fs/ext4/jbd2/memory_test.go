package jbd2

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/blockdevtest"
)

// pinnedDevice is a device of 256 MiB that may pin so many bytes.
func pinnedDevice(t *testing.T, pinned int64) *blockdevtest.PinnedDevice {
	t.Helper()
	d := blockdevtest.Pinned(t, blockdev.NewMem(256<<20, 512), pinned)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

// TestBudget: whatever the pool, a transaction has its staging memory twice, the cache room for what that copies and more, and file
// data its share; what does not fit is refused with what would.
func TestBudget(t *testing.T) {
	for _, bs := range []int{1 << 10, 4 << 10, 64 << 10} {
		for _, mib := range []int64{4, 12, 16, 64, 200, 1024, 8192} {
			d := pinnedDevice(t, mib<<20)
			data := d.Room(blockdev.ForJournal)
			c, err := NewCache(d, bs, CacheOptions{})
			if err != nil {
				require.Less(t, mib, int64(12*max(bs/4096, 1)), "%v", err)
				require.ErrorContains(t, err, "bytes of pinned memory are too few for a volume with blocks of")
				require.Equal(t, data, d.Room(blockdev.ForJournal), "what was refused has reserved nothing")
				var enough int64
				_, said, _ := strings.Cut(err.Error(), "; give pinned=")
				_, scanErr := fmt.Sscanf(said, "%dM or more", &enough)
				require.NoError(t, scanErr, "%v", err)
				c, err = NewCache(pinnedDevice(t, enough<<20), bs, CacheOptions{})
				require.NoError(t, err, "what the refusal of %d MiB asks for", mib)
				require.NoError(t, c.Close())
				continue
			}
			b := c.budget
			require.GreaterOrEqual(t, b.txn, int64(minTxn*bs))
			require.GreaterOrEqual(t, b.stage, 2*b.txn)
			require.Greater(t, b.least, b.txn+b.stage)
			require.GreaterOrEqual(t, d.Room(blockdev.ForCache), max(b.least, b.limit))
			require.GreaterOrEqual(t, d.Room(blockdev.ForData), min(mib<<20/8, 64<<20))
			if mib >= 1024 && bs == 4096 {
				require.EqualValues(t, []int64{32 << 20, 96 << 20, 256 << 20}, []int64{b.txn, b.stage, b.limit})
			}
			room := d.Room(blockdev.ForCache)
			require.NoError(t, c.Close())
			_, err = NewCache(d, bs, CacheOptions{Limit: room + 1})
			require.ErrorContains(t, err, "give a smaller cache= or a larger pinned=")
			c, err = NewCache(d, bs, CacheOptions{Limit: room})
			require.NoError(t, err)
			require.NoError(t, c.Close())
			require.Equal(t, data, d.Room(blockdev.ForJournal))
		}
	}
}

// TestCacheMakesRoom: while file data has all memory that it can get, the cache goes on in its own. It forgets unused blocks; if
// all is in use it waits until something is not, and not for ever.
func TestCacheMakesRoom(t *testing.T) {
	d := pinnedDevice(t, 16<<20)
	c, err := NewCache(d, 4096, CacheOptions{})
	require.NoError(t, err)
	var data []blockdev.Buffer
	for {
		b, err := d.Alloc(1<<20, blockdev.ForData|blockdev.NoWait)
		if err != nil {
			break
		}
		data = append(data, b)
	}
	for b := range Block(10000) {
		buf, err := c.Get(b)
		require.NoError(t, err)
		buf.Put()
	}
	c.patience = 300 * time.Millisecond
	var held []*Buffer
	for {
		buf, err := c.Get(Block(len(held)))
		if err != nil {
			require.ErrorIs(t, err, blockdev.ErrNoMemory)
			require.ErrorContains(t, err, "blocks of the metadata cache were in use for 300ms")
			break
		}
		held = append(held, buf)
	}
	require.GreaterOrEqual(t, int64(len(held))*4096, c.budget.least)
	c.patience = waitLong
	got := make(chan error, 1)
	go func() {
		buf, err := c.Get(Block(len(held)))
		if err == nil {
			buf.Put()
		}
		got <- err
	}()
	require.Eventually(t, func() bool { return c.waiting.Load() == 1 }, waitLong, waitStep)
	require.Empty(t, got)
	held[7].Put()
	require.NoError(t, <-got)
	for i, buf := range held {
		if i != 7 {
			buf.Put()
		}
	}
	for _, b := range data {
		b.Release()
	}
	require.NoError(t, c.Close())
}

// TestStagingWaits: commits that find the staging memory full of copies that are not home have them written home, and go on. Without
// any memory to be had beyond what the journal reserved.
func TestStagingWaits(t *testing.T) {
	d := newTestDevice(crashBS*crashBlocks, 512)
	mkJournal(d, crashBS, crashLog, scattered(crashLog))
	c, err := NewCache(d, crashBS, CacheOptions{})
	require.NoError(t, err)
	c.stage.most = 2
	l, err := OpenLog(c, crashLog, scattered(crashLog))
	require.NoError(t, err)
	c.stage.dev = &noMoreMemory{testDevice: d, left: 2}
	j, err := l.Start(Config{Interval: time.Hour}, ChecksumV3, true)
	require.NoError(t, err)
	for v := uint64(1); v < 40; v++ {
		h, err := j.Begin(240)
		require.NoError(t, err)
		for b := Block(0); b < 240; b++ {
			set(t, c, h, b+Block(v), v)
		}
		tid := h.TID()
		require.NoError(t, h.End())
		require.NoError(t, j.WaitCommit(tid))
	}
	require.LessOrEqual(t, c.stage.have, 2)
	require.NoError(t, j.Close())
	require.NoError(t, c.Close())
	require.EqualValues(t, 39, onMedium(d, crashBS, 100))
}

// TestNoStagingIsNoAbort: a transaction that has grown beyond the memory there is waits, and is committed when there is some.
func TestNoStagingIsNoAbort(t *testing.T) {
	d := newTestDevice(crashBS*crashBlocks, 512)
	mkJournal(d, crashBS, crashLog, scattered(crashLog))
	c, err := NewCache(d, crashBS, CacheOptions{})
	require.NoError(t, err)
	l, err := OpenLog(c, crashLog, scattered(crashLog))
	require.NoError(t, err)
	memory := &noMoreMemory{testDevice: d, left: 2}
	c.stage.dev = memory
	j, err := l.Start(Config{Interval: time.Hour, BeforeCommit: func(h *Handle) { set(t, c, h, 299, 1) }, BeforeCommitCredits: 1}, ChecksumV3, true)
	require.NoError(t, err)
	memory.left = 0
	h, err := j.Begin(1)
	require.NoError(t, err)
	for b := range Block(290) { // more than it has credits for
		set(t, c, h, b, 7)
	}
	tid := h.TID()
	require.NoError(t, h.End())
	have := c.stage.have
	for range 3 {
		err = j.WaitCommit(tid)
		require.ErrorIs(t, err, ErrHeld)
		require.ErrorIs(t, err, blockdev.ErrNoMemory)
		require.NoError(t, j.Err())
	}
	require.Equal(t, have, c.stage.have)
	_, err = j.Begin(1)
	require.ErrorIs(t, err, ErrHeld)
	memory.left = 10
	require.NoError(t, j.WaitCommit(tid))
	require.Nil(t, j.Held())
	put(t, c, j, 5, 8)
	require.NoError(t, j.Close())
	require.NoError(t, c.Close())
	require.EqualValues(t, 8, onMedium(d, crashBS, 5))
	require.EqualValues(t, 7, onMedium(d, crashBS, 289))
}

// noMoreMemory gives so many buffers.
type noMoreMemory struct {
	*testDevice
	left int
}

func (d *noMoreMemory) Alloc(n int, use ...blockdev.Use) (blockdev.Buffer, error) {
	if d.left--; d.left < 0 {
		return nil, blockdev.ErrNoMemory
	}
	return d.testDevice.Alloc(n, use...)
}
