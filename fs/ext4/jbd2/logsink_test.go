package jbd2

import (
	"bytes"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func newLogged(t *testing.T, cfg Config) (*testDevice, *mounted) {
	t.Helper()
	d := newTestDevice(crashBS*crashBlocks, 512)
	mkJournal(d, crashBS, crashLog, scattered(crashLog))
	return d, mountLog(t, d, crashBS, crashLog, scattered(crashLog), ChecksumV3, true, cfg)
}

// recovered is what a power cut now, and a recovery, make of the volume.
func recovered(t *testing.T, d *testDevice) []byte {
	t.Helper()
	d.mu.Lock()
	e := newTestDeviceFrom(d.durable, 512)
	d.mu.Unlock()
	m := mountLog(t, e, crashBS, crashLog, scattered(crashLog), ChecksumV3, true, Config{})
	require.NoError(t, m.j.Close())
	require.NoError(t, m.c.Close())
	return e.durable
}

func valueIn(img []byte, b Block) uint64 {
	p := bytes.Clone(img[int(b)*crashBS:][:8])
	return uint64(p[0]) | uint64(p[1])<<8 | uint64(p[2])<<16 // put writes little-endian numbers
}

// TestOnlyCommittedGoesHome: while a later transaction has changed a block, what a checkpoint writes home is what was
// committed.
func TestOnlyCommittedGoesHome(t *testing.T) {
	d, m := newLogged(t, Config{})
	tid := put(t, m.c, m.j, 7, 70)
	require.NoError(t, m.j.WaitCommit(tid))
	require.Zero(t, onMedium(d, crashBS, 7), "it is in the log only")
	h, err := m.j.Begin(1)
	require.NoError(t, err)
	set(t, m.c, h, 7, 71)
	require.NoError(t, m.j.sink.(*logSink).drain())
	require.EqualValues(t, 70, onMedium(d, crashBS, 7))
	require.EqualValues(t, 70, valueIn(recovered(t, d), 7))
	require.NoError(t, h.End())
	require.NoError(t, m.j.Commit())
	require.EqualValues(t, 70, onMedium(d, crashBS, 7))
	require.EqualValues(t, 71, valueIn(recovered(t, d), 7))
	require.NoError(t, m.j.Close())
	require.EqualValues(t, 71, onMedium(d, crashBS, 7))
	require.NoError(t, m.c.Close())
}

// TestForgetAndTakeAgain: a block freed and used again for metadata in the same transaction is not revoked.
func TestForgetAndTakeAgain(t *testing.T) {
	d, m := newLogged(t, Config{})
	require.NoError(t, m.j.WaitCommit(put(t, m.c, m.j, 7, 70)))
	h, err := m.j.Begin(1)
	require.NoError(t, err)
	h.Forget(7)
	b, err := m.c.New(7)
	require.NoError(t, err)
	b.Lock()
	b.Data()[0] = 71
	h.Dirty(b)
	b.Unlock()
	b.Put()
	require.NoError(t, h.End())
	require.NoError(t, m.j.Commit())
	require.EqualValues(t, 71, valueIn(recovered(t, d), 7))
	require.NoError(t, m.j.Close())
	require.EqualValues(t, 71, onMedium(d, crashBS, 7))
	require.NoError(t, m.c.Close())
}

// TestForgottenStaysAway: once the transaction that freed a block is committed, neither checkpoint nor recovery nor close
// write it.
func TestForgottenStaysAway(t *testing.T) {
	d, m := newLogged(t, Config{})
	require.NoError(t, m.j.WaitCommit(put(t, m.c, m.j, 7, 70)))
	h, err := m.j.Begin(1)
	require.NoError(t, err)
	h.Forget(7)
	require.NoError(t, h.End())
	require.EqualValues(t, 70, valueIn(recovered(t, d), 7), "the freeing did not commit")
	require.NoError(t, m.j.Commit())
	buf, err := d.Alloc(crashBS)
	require.NoError(t, err)
	clear(buf.Bytes())
	buf.Bytes()[0] = 99
	require.NoError(t, d.Write(m.c.off(7), true, buf.Slice(0, crashBS)))
	require.EqualValues(t, 99, valueIn(recovered(t, d), 7))
	require.NoError(t, m.j.Close())
	require.EqualValues(t, 99, onMedium(d, crashBS, 7))
	require.NoError(t, m.c.Close())
}

// TestEmptyTransactionsLeaveNoGap: transactions that change nothing take no number in the log.
func TestEmptyTransactionsLeaveNoGap(t *testing.T) {
	d, m := newLogged(t, Config{})
	for i := range uint64(6) {
		if i%2 == 1 {
			h, err := m.j.Begin(3)
			require.NoError(t, err)
			ran := false
			h.OnCommit(func() { ran = true })
			require.NoError(t, h.End())
			require.NoError(t, m.j.Commit())
			require.True(t, ran)
			continue
		}
		require.NoError(t, m.j.WaitCommit(put(t, m.c, m.j, Block(10+i), i+1)))
	}
	img := recovered(t, d)
	for i := uint64(0); i < 6; i += 2 {
		require.Equal(t, i+1, valueIn(img, Block(10+i)))
	}
	require.NoError(t, m.j.Close())
	require.NoError(t, m.c.Close())
}

// TestSequenceWraps: the TID passes from 2³²-1 to 0 without a break.
func TestSequenceWraps(t *testing.T) {
	d := newTestDevice(crashBS*crashBlocks, 512)
	mkJournal(d, crashBS, crashLog, scattered(crashLog))
	phys, _, _ := scattered(crashLog)(0)
	super := d.image[int(phys)*crashBS:]
	be.PutUint32(super[0x18:], 0xfffffffc)
	copy(d.durable, d.image)
	m := mountLog(t, d, crashBS, crashLog, scattered(crashLog), ChecksumV3, true, Config{})
	for i := range uint64(8) {
		require.NoError(t, m.j.WaitCommit(put(t, m.c, m.j, 7, i+1)))
		require.Equal(t, i+1, valueIn(recovered(t, d), 7))
	}
	require.NoError(t, m.j.Close())
	require.NoError(t, m.c.Close())
	require.EqualValues(t, 8, onMedium(d, crashBS, 7))
}

// TestLogAbort: a write that fails while committing or checkpointing aborts; what was acknowledged is recovered.
func TestLogAbort(t *testing.T) {
	for fail := 1; fail <= 40; fail++ {
		d, m := newLogged(t, Config{})
		d.mu.Lock()
		d.failAt = fail
		d.mu.Unlock()
		acked := map[Block]uint64{}
		var err error
		for i := 0; err == nil; i++ {
			require.Less(t, i, 100, "write %d never failed", fail)
			var h *Handle
			if h, err = m.j.Begin(20); err != nil {
				break
			}
			for k := range 20 {
				set(t, m.c, h, Block(1+(i*20+k)%200), uint64(i+1))
			}
			_ = h.End()
			if err = m.j.Commit(); err == nil {
				for k := range 20 {
					acked[Block(1+(i*20+k)%200)] = uint64(i + 1)
				}
			}
			if err == nil && i%5 == 4 {
				err = m.j.Checkpoint()
			}
		}
		require.ErrorIs(t, err, errInjected)
		require.Eventually(t, func() bool { _, err := m.j.Begin(1); return err != nil }, waitLong, waitStep)
		_, err = m.j.Begin(1)
		require.ErrorIs(t, err, ErrAborted)
		require.ErrorIs(t, m.j.Close(), ErrAborted)
		require.NoError(t, m.c.Close())
		img := recovered(t, d)
		for b, v := range acked {
			require.GreaterOrEqual(t, valueIn(img, b), v, "fail %d, block %d", fail, b)
		}
	}
}

// TestLogConcurrent: many goroutines change, free and wait at once, around a small log.
func TestLogConcurrent(t *testing.T) {
	d, m := newLogged(t, Config{})
	const workers, rounds = 8, 60
	var wg sync.WaitGroup
	for g := range workers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range rounds {
				h, err := m.j.Begin(8)
				if err != nil {
					t.Error(err)
					return
				}
				for k := range 7 {
					set(t, m.c, h, Block(1+g*30+(i+k)%30), uint64(i+1))
				}
				set(t, m.c, h, 299, uint64(i)) // shared by all
				tid := h.TID()
				if err := h.End(); err != nil {
					t.Error(err)
				}
				if i%3 == 0 {
					if err := m.j.WaitCommit(tid); err != nil {
						t.Error(err)
					}
				}
			}
		}()
	}
	wg.Wait()
	st := m.c.Stats()
	require.NoError(t, m.j.Close())
	require.NoError(t, m.c.Close())
	require.Zero(t, st.Overruns)
	for g := range workers {
		for k := range 30 {
			last := 0
			for i := range rounds {
				for x := range 7 {
					if (i+x)%30 == k {
						last = i + 1
					}
				}
			}
			require.EqualValues(t, last, onMedium(d, crashBS, Block(1+g*30+k)), fmt.Sprint(g, k))
		}
	}
}

func TestStartRefuses(t *testing.T) {
	d := newTestDevice(crashBS*crashBlocks, 512)
	f := scattered(crashLog)
	mkJournal(d, crashBS, crashLog, f)
	c, err := NewCache(d, crashBS, CacheOptions{})
	require.NoError(t, err)
	_, err = OpenLog(c, crashLog-1, f)
	require.ErrorContains(t, err, "its file has 1023")
	l, err := OpenLog(c, crashLog, f)
	require.NoError(t, err)
	l.sb.start = 5
	_, err = l.Start(Config{}, ChecksumV3, true)
	require.ErrorIs(t, err, ErrNeedsRecovery)
	phys, _, _ := f(0)
	be.PutUint32(d.image[int(phys)*crashBS+0x10:], 1000)
	l, err = OpenLog(c, crashLog, f)
	require.NoError(t, err)
	_, err = l.Start(Config{}, ChecksumV3, true)
	require.ErrorContains(t, err, "1000 blocks, 1024 are the least")
	require.NoError(t, c.Close())
}

// TestTooLarge changes more blocks in one transaction than the log has. A caller of Fits learns of it in time; a commit fails, and
// does not wait for room that there will never be.
func TestTooLarge(t *testing.T) {
	for _, more := range []int{0, 1, 100} {
		const blocks = 4 * crashLog
		d := newTestDevice(crashBS*blocks, 512)
		at := func(n uint32) (Block, uint32, error) { return blocks - crashLog + Block(n), crashLog - n, nil }
		mkJournal(d, crashBS, crashLog, at)
		m := mountLog(t, d, crashBS, crashLog, at, ChecksumV3, true, Config{})
		h, err := m.j.Begin(1)
		require.NoError(t, err)
		most := 0
		for m.j.sink.blocks(most+1, 0) <= m.j.sink.capacity() {
			most++
		}
		for b := range most + more {
			if b == most {
				require.NoError(t, h.Fits())
			}
			set(t, m.c, h, Block(b), uint64(b))
		}
		if more == 0 {
			require.NoError(t, h.Fits())
			require.NoError(t, h.End())
			require.NoError(t, m.j.Commit())
			require.NoError(t, m.j.Close())
			require.EqualValues(t, most-1, onMedium(d, crashBS, Block(most-1)))
		} else {
			require.ErrorIs(t, h.Fits(), ErrTooLarge)
			require.NoError(t, h.End())
			require.ErrorIs(t, m.j.Commit(), ErrTooLarge)
			require.ErrorIs(t, m.j.Close(), ErrTooLarge)
			require.Zero(t, onMedium(d, crashBS, 1))
		}
		require.NoError(t, m.c.Close())
	}
}

// TestAbortAfterCommit aborts the journal while a transaction is open, when another was committed before: what that one staged is the
// checkpointer's, and not given back a second time.
func TestAbortAfterCommit(t *testing.T) {
	_, m := newLogged(t, Config{})
	require.NoError(t, m.j.WaitCommit(put(t, m.c, m.j, 7, 70)))
	h, err := m.j.Begin(2)
	require.NoError(t, err)
	set(t, m.c, h, 8, 80)
	wait := make(chan error, 1)
	go func() { wait <- m.j.Commit() }()
	require.Eventually(t, func() bool {
		m.j.mu.Lock()
		defer m.j.mu.Unlock()
		return m.j.closing
	}, waitLong, waitStep, "the commit does not wait for the handle")
	m.j.Abort(errInjected)
	require.ErrorIs(t, h.End(), ErrAborted)
	require.ErrorIs(t, <-wait, ErrAborted)
	require.ErrorIs(t, m.j.Close(), ErrAborted)
	require.NoError(t, m.c.Close())
}
