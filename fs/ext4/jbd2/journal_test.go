package jbd2

import (
	"encoding/binary"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// put changes the number in a block under a handle of its own.
func put(t *testing.T, c *Cache, j *Journal, b Block, v uint64) TID {
	t.Helper()
	h, err := j.Begin(1)
	require.NoError(t, err)
	set(t, c, h, b, v)
	tid := h.TID()
	require.NoError(t, h.End())
	return tid
}

func set(t *testing.T, c *Cache, h *Handle, b Block, v uint64) {
	t.Helper()
	buf, err := c.Get(b)
	require.NoError(t, err)
	buf.Lock()
	binary.LittleEndian.PutUint64(buf.Data(), v)
	h.Dirty(buf)
	buf.Unlock()
	buf.Put()
}

func onMedium(d *testDevice, bs int, b Block) uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return binary.LittleEndian.Uint64(d.durable[int(b)*bs:])
}

func inPlaceOn(t *testing.T, d *testDevice, cfg Config) (*Cache, *Journal) {
	t.Helper()
	c, err := NewCache(d, 4096, CacheOptions{})
	require.NoError(t, err)
	if cfg.Interval == 0 {
		cfg.Interval = time.Hour
	}
	j, err := OpenInPlace(c, cfg)
	require.NoError(t, err)
	return c, j
}

func TestInPlaceCommit(t *testing.T) {
	d := newTestDevice(1<<20, 512)
	c, j := inPlaceOn(t, d, Config{})
	ran := 0
	h, err := j.Begin(2)
	require.NoError(t, err)
	set(t, c, h, 7, 70)
	set(t, c, h, 8, 80)
	require.Zero(t, h.credits)
	h.OnCommit(func() { ran++ })
	tid := h.TID()
	require.NoError(t, h.End())
	require.Zero(t, ran)
	require.Zero(t, onMedium(d, 4096, 7), "nothing is written before the commit")
	require.False(t, j.Committed(tid))
	require.NoError(t, j.WaitCommit(tid))
	require.Equal(t, 1, ran)
	require.EqualValues(t, 70, onMedium(d, 4096, 7))
	require.EqualValues(t, 80, onMedium(d, 4096, 8))
	require.EqualValues(t, 8192, c.Stats().MetadataWritten)
	require.NoError(t, j.WaitCommit(tid), "again costs nothing")
	require.EqualValues(t, 1, c.Stats().Commits)
	require.Error(t, j.WaitCommit(tid+1))
	put(t, c, j, 9, 90)
	require.NoError(t, j.Close())
	require.EqualValues(t, 90, onMedium(d, 4096, 9), "Close commits")
	_, err = j.Begin(1)
	require.ErrorIs(t, err, ErrClosed)
	require.NoError(t, c.Close())
}

func TestCommitTimer(t *testing.T) {
	d := newTestDevice(1<<20, 512)
	c, j := inPlaceOn(t, d, Config{Interval: time.Millisecond})
	tid := put(t, c, j, 7, 70)
	require.Eventually(t, func() bool { return j.Committed(tid) }, waitLong, waitStep)
	require.EqualValues(t, 70, onMedium(d, 4096, 7))
	require.NoError(t, j.Close())
}

func TestCommitOfNothingFlushes(t *testing.T) {
	d := newTestDevice(1<<20, 512)
	d.record = true
	_, j := inPlaceOn(t, d, Config{})
	require.NoError(t, j.Commit())
	require.Equal(t, []string{"flush"}, d.log)
	h, err := j.Begin(1)
	require.NoError(t, err)
	require.NoError(t, h.End())
	require.NoError(t, j.Commit())
	require.Equal(t, []string{"flush", "flush"}, d.log)
	require.NoError(t, j.Close())
}

func TestForgetIsNotWritten(t *testing.T) {
	d := newTestDevice(1<<20, 512)
	c, j := inPlaceOn(t, d, Config{})
	h, err := j.Begin(2)
	require.NoError(t, err)
	set(t, c, h, 7, 70)
	set(t, c, h, 8, 80)
	h.Forget(7)
	require.NoError(t, h.End())
	require.NoError(t, j.Commit())
	require.Zero(t, onMedium(d, 4096, 7))
	require.EqualValues(t, 80, onMedium(d, 4096, 8))
	require.NoError(t, j.Close())
	require.NoError(t, c.Close())
}

func TestBeginLimits(t *testing.T) {
	d := newTestDevice(40<<20, 512)
	c, j := inPlaceOn(t, d, Config{})
	_, err := j.Begin(j.MaxCredits() + 1)
	require.ErrorIs(t, err, ErrTooLarge)
	// A transaction that is full is committed, and Begin goes on in the next one.
	h, err := j.Begin(j.MaxCredits())
	require.NoError(t, err)
	first := h.TID()
	for i := range j.MaxCredits() {
		set(t, c, h, Block(i), 1)
	}
	require.NoError(t, h.End())
	h, err = j.Begin(1)
	require.NoError(t, err)
	require.Equal(t, first+1, h.TID())
	require.NoError(t, h.End())
	require.NoError(t, j.Close())
	require.NoError(t, c.Close())
}

func TestAbort(t *testing.T) {
	d := newTestDevice(1<<20, 512)
	var lines int
	c, j := inPlaceOn(t, d, Config{Log: disktest.Logger(func(string) { lines++ })})
	d.failAt = 1
	tid := put(t, c, j, 7, 70)
	err := j.WaitCommit(tid)
	require.ErrorIs(t, err, ErrAborted)
	require.ErrorIs(t, err, errInjected)
	_, err = j.Begin(1)
	require.ErrorIs(t, err, ErrAborted)
	require.ErrorIs(t, err, errInjected)
	require.ErrorIs(t, j.Commit(), ErrAborted)
	b, err := c.Get(7)
	require.NoError(t, err)
	require.EqualValues(t, 70, number(b), "readers keep what was in memory")
	b.Put()
	require.ErrorIs(t, j.Close(), ErrAborted)
	require.Equal(t, 1, lines)
	require.NoError(t, c.Close())
}

func TestAbortWithOpenHandle(t *testing.T) {
	d := newTestDevice(1<<20, 512)
	c, j := inPlaceOn(t, d, Config{})
	h, err := j.Begin(2)
	require.NoError(t, err)
	set(t, c, h, 1, 1)
	j.Abort(errInjected)
	set(t, c, h, 1, 2)
	set(t, c, h, 2, 2)
	require.ErrorIs(t, h.End(), ErrAborted)
	require.ErrorIs(t, j.Close(), ErrAborted)
	require.NoError(t, c.Close())
	require.Zero(t, onMedium(d, 4096, 1))
}

func TestBeforeCommit(t *testing.T) {
	d := newTestDevice(1<<20, 512)
	var c *Cache
	calls := uint64(0)
	c, j := inPlaceOn(t, d, Config{BeforeCommitCredits: 1, BeforeCommit: func(h *Handle) {
		calls++
		set(t, c, h, 0, calls)
	}})
	put(t, c, j, 7, 70)
	require.NoError(t, j.Commit())
	require.EqualValues(t, 1, onMedium(d, 4096, 0))
	require.NoError(t, j.Commit())
	require.EqualValues(t, 1, calls, "nothing changed")
	require.NoError(t, j.Close())
	require.Zero(t, c.Stats().Overruns)
	require.NoError(t, c.Close())
}

// TestGroupCommit: many waits at once share commits, and each change is durable after its wait.
func TestGroupCommit(t *testing.T) {
	d := newTestDevice(16<<20, 512)
	c, j := inPlaceOn(t, d, Config{})
	const workers, rounds = 16, 50
	var wg sync.WaitGroup
	for g := range workers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range rounds {
				b := Block(g*rounds + i)
				h, err := j.Begin(1)
				if err != nil {
					t.Error(err)
					return
				}
				set(t, c, h, b, uint64(b)+1)
				tid := h.TID()
				if err := h.End(); err != nil {
					t.Error(err)
				}
				if err := j.WaitCommit(tid); err != nil {
					t.Error(err)
				}
				if v := onMedium(d, 4096, b); v != uint64(b)+1 {
					t.Errorf("block %d has %d after its commit", b, v)
				}
			}
		}()
	}
	wg.Wait()
	require.NoError(t, j.Close())
	require.LessOrEqual(t, c.Stats().Commits, int64(workers*rounds))
	require.NoError(t, c.Close())
}
