package pool

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev"
)

const testHang = time.Minute // much longer than anything here takes

// ask waits for a buffer in a goroutine of its own, and returns when it is in the queue or served.
func ask(t *testing.T, p *Pool, n int, use blockdev.Use) <-chan blockdev.Buffer {
	t.Helper()
	got := make(chan blockdev.Buffer, 1)
	p.mu.Lock()
	before := len(p.arenas[use].queue)
	p.mu.Unlock()
	go func() {
		b, err := p.alloc(n, use)
		if err != nil {
			t.Errorf("%d bytes for %v: %v", n, use, err)
		}
		got <- b
	}()
	require.Eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.arenas[use].queue) > before || len(got) > 0
	}, testHang, time.Millisecond)
	return got
}

func served(t *testing.T, c <-chan blockdev.Buffer) blockdev.Buffer {
	t.Helper()
	select {
	case b := <-c:
		return b
	case <-time.After(testHang):
		t.Fatal("the wait did not end")
		return nil
	}
}

// fill takes buffers until none is left.
func fill(t *testing.T, p *Pool, n int, use blockdev.Use) (held []blockdev.Buffer) {
	t.Helper()
	for {
		b, err := p.alloc(n, use|blockdev.NoWait)
		if err != nil {
			require.ErrorIs(t, err, blockdev.ErrNoMemory)
			return held
		}
		held = append(held, b)
	}
}

// TestWaitsInOrder: an Alloc of a large buffer is not starved by later ones of small buffers.
func TestWaitsInOrder(t *testing.T) {
	p, _ := testPool(16 << 20)
	held := fill(t, p, 4096, blockdev.ForData)
	require.Len(t, held, 4096)
	large := ask(t, p, 12<<20, blockdev.ForData)
	small := ask(t, p, 4096, blockdev.ForData)
	_, err := p.alloc(4096, blockdev.ForData|blockdev.NoWait)
	require.ErrorIs(t, err, blockdev.ErrNoMemory)
	for _, b := range held[:100] {
		b.Release()
	}
	require.Empty(t, small, "the later one was served before")
	_, err = p.alloc(4096, blockdev.ForData|blockdev.NoWait)
	require.ErrorIs(t, err, blockdev.ErrNoMemory, "there is some, but an earlier one waits for it")
	for _, b := range held[100:] {
		b.Release()
	}
	served(t, large).Release()
	served(t, small).Release()
	require.NoError(t, p.Close())
}

// TestReserves: what is reserved for a use is free for it while another use has all that it can get, and waits.
func TestReserves(t *testing.T) {
	p, open := testPool(16 << 20)
	require.NoError(t, p.Reserve(blockdev.ForData, 4<<20))
	require.NoError(t, p.Reserve(blockdev.ForCache, 5<<20)) // 6 MiB, whole slabs
	require.NoError(t, p.Reserve(blockdev.ForJournal, 2<<20))
	err := p.Reserve(blockdev.ForBlock, 5<<20)
	require.EqualError(t, err, "out of pinned memory: 6291456 bytes are to be kept for single blocks, of 16777216 bytes 4194304 are left")
	data := fill(t, p, 1<<20, blockdev.ForData)
	require.Len(t, data, 8)
	waiting := ask(t, p, 1<<20, blockdev.ForData)
	journal := fill(t, p, 256<<10, blockdev.ForJournal)
	require.Len(t, journal, 8)
	cache := fill(t, p, 256<<10, blockdev.ForCache)
	require.Len(t, cache, 24)
	require.Empty(t, waiting)
	data[0].Release()
	served(t, waiting).Release()
	for _, b := range append(append(data[1:], journal...), cache...) {
		b.Release()
	}
	cache = fill(t, p, 256<<10, blockdev.ForCache)
	require.Len(t, cache, 40, "what is not reserved goes to the first that asks")
	require.Len(t, fill(t, p, 1<<20, blockdev.ForData), 4)
	require.Error(t, p.Close())
	require.NotZero(t, *open)
}

// TestGivesUp: a wait during which no buffer is released ends with ErrNoMemory, which says what each use holds; one during which
// buffers are released does not end so.
func TestGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := testPool(4 << 20)
		p.timeout, p.tick = 200*time.Millisecond, time.Millisecond
		held := fill(t, p, 1<<20, blockdev.ForData)
		all := ask(t, p, 4<<20, blockdev.ForData)
		for _, b := range held {
			time.Sleep(p.timeout * 3 / 4)
			b.Release()
		}
		served(t, all).Release()
		held = fill(t, p, 1<<20, blockdev.ForData)
		held[0].Release()
		large := make(chan error, 1)
		go func() { _, err := p.alloc(4<<20, blockdev.ForData); large <- err }()
		select {
		case err := <-large:
			require.ErrorIs(t, err, blockdev.ErrNoMemory)
			require.ErrorContains(t, err, "for 4194304 bytes for data, and nothing came back for 200ms; 4194304 of at most 4194304 bytes are pinned: data 3145728 in 3 buffers")
		case <-time.After(testHang):
			t.Fatal("the wait never ended")
		}
		for _, b := range held[1:] {
			b.Release()
		}
		b, err := p.alloc(4<<20, blockdev.ForData)
		require.NoError(t, err)
		b.Release()
		require.NoError(t, p.Close())
	})
}

// TestStopped: a process that was stopped for longer than a wait may last does not end it as soon as it goes on.
func TestStopped(t *testing.T) {
	p, _ := testPool(4 << 20)
	held := fill(t, p, 1<<20, blockdev.ForData)
	waiting := ask(t, p, 1<<20, blockdev.ForData)
	p.mu.Lock()
	w := p.arenas[blockdev.ForData].queue[0]
	w.since = w.since.Add(-2 * p.timeout)
	p.giveUpLocked(blockdev.ForData, w)
	p.mu.Unlock()
	for _, b := range held {
		b.Release()
	}
	served(t, waiting).Release()
	require.NoError(t, p.Close())
}

// TestSystemRefuses: Alloc waits for memory that the system refuses while a release can serve instead, and asks the system again.
func TestSystemRefuses(t *testing.T) {
	p, _ := testPool(64 << 20)
	p.tick = time.Millisecond
	boom := errors.New("cannot pin: RLIMIT_MEMLOCK")
	var refuse atomic.Bool
	source := p.source
	p.source = func(n int64) (Memory, error) {
		if refuse.Load() {
			return nil, boom
		}
		return source(n)
	}
	held, err := p.alloc(2<<20, blockdev.ForData)
	require.NoError(t, err)
	refuse.Store(true)
	rest := fill(t, p, 2<<20, blockdev.ForData) // of the chunk that there is
	require.Len(t, rest, 7)
	_, err = p.alloc(4096, blockdev.ForCache)
	require.ErrorIs(t, err, boom, "no buffer of this use is held that could be released")
	first := ask(t, p, 2<<20, blockdev.ForData)
	second := ask(t, p, 2<<20, blockdev.ForData)
	held.Release()
	held = served(t, first)
	require.Empty(t, second)
	refuse.Store(false)
	served(t, second).Release() // the system gives again, without a release
	for _, b := range append(rest, held) {
		b.Release()
	}
	require.NoError(t, p.Close())
}

// TestAsksForSpare: an Alloc that has to wait calls the function given to OnShort.
func TestAsksForSpare(t *testing.T) {
	p, _ := testPool(8 << 20)
	cache := fill(t, p, 256<<10, blockdev.ForCache)
	require.Len(t, cache, 32)
	p.OnShort(func() {
		for _, b := range cache {
			b.Release()
		}
		cache = nil
	})
	b, err := p.alloc(1<<20, blockdev.ForData)
	require.NoError(t, err)
	b.Release()
	require.NoError(t, p.Close())
}

// TestCloseEndsWaits: Close ends the waits with ErrClosed.
func TestCloseEndsWaits(t *testing.T) {
	p, _ := testPool(2 << 20)
	held := fill(t, p, 1<<20, blockdev.ForData)
	failed := make(chan error, 1)
	go func() { _, err := p.alloc(1<<20, blockdev.ForData); failed <- err }()
	require.Eventually(t, func() bool { p.mu.Lock(); defer p.mu.Unlock(); return p.waiting == 1 }, testHang, time.Millisecond)
	require.Error(t, p.Close())
	require.ErrorIs(t, <-failed, blockdev.ErrClosed)
	for _, b := range held {
		b.Release()
	}
}

// TestManyWait: far more than fits, of all sizes and uses, from many goroutines: all are served, and nothing is left.
func TestManyWait(t *testing.T) {
	p, open := testPool(16 << 20)
	for use, n := range map[blockdev.Use]int64{blockdev.ForData: 4 << 20, blockdev.ForBlock: 2 << 20, blockdev.ForCache: 4 << 20, blockdev.ForJournal: 2 << 20} {
		require.NoError(t, p.Reserve(use, n))
	}
	var wg sync.WaitGroup
	for k := range 1600 {
		wg.Go(func() {
			use := blockdev.Use(k) % blockdev.NumUses
			for round := range 5 {
				n := 4096 << ((k + round) % 10)
				b, err := p.alloc(n, use)
				if err != nil {
					t.Errorf("%d bytes for %v: %v", n, use, err)
					return
				}
				b.Bytes()[0], b.Bytes()[n-1] = byte(k), byte(k)
				time.Sleep(time.Duration(k%7) * 10 * time.Microsecond)
				if b.Bytes()[0] != byte(k) || b.Bytes()[n-1] != byte(k) {
					t.Errorf("a buffer of %d bytes changed while it was held", n)
				}
				b.Release()
			}
		})
	}
	wg.Wait()
	require.LessOrEqual(t, p.size, p.limit)
	require.NoError(t, p.Close())
	require.Zero(t, *open)
}
