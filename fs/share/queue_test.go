package share

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/share/wire"
)

// TestQueue: batches are taken in their order, each by one worker, however the workers wait, also by one whose place is wanted just then; and all workers end.
func TestQueue(t *testing.T) {
	defer func(was int) { processors = was }(processors)
	for _, processors = range []int{threadsLeast - 1, threadsLeast} {
		q, p := newQueue(), newPlaces(0, 0)
		const workers, batches = 6, 20000
		var times [batches]atomic.Int32
		var all sync.WaitGroup
		var left atomic.Int32
		wanted := make(chan struct{})
		for k := range workers {
			var mine wants
			if k > 0 {
				mine[k%len(mine)] = wanted
			}
			all.Go(func() {
				w := newWaiter()
				for last := -1; ; {
					b, ok, moved := q.take(w, &p.threads, mine)
					if ok {
						times[b.bytes].Add(1)
						if int(b.bytes) <= last {
							t.Errorf("%d came after %d", b.bytes, last)
						}
						last = int(b.bytes)
					}
					if moved {
						left.Add(1)
					}
					if !ok || moved {
						return
					}
				}
			})
		}
		quit, given := make(chan struct{}), int32(0)
		var wants sync.WaitGroup
		wants.Go(func() {
			for given < workers-1 {
				select {
				case wanted <- struct{}{}:
					given++
				case <-quit:
					return
				}
				time.Sleep(2 * time.Millisecond)
			}
		})
		for k := range uint64(batches) {
			if b := (batch{bytes: k}); k%2 != 0 || !q.offer(b) {
				q.pass(b)
			}
		}
		close(quit)
		wants.Wait()
		q.end()
		all.Wait()
		for k := range times {
			require.EqualValues(t, 1, times[k].Load(), "batch %d of %d processors", k, processors)
		}
		require.Equal(t, given, left.Load(), "places")
		require.Zero(t, p.threads.Load())
		require.Empty(t, q.threads)
		require.Empty(t, q.goroutines)
		require.False(t, q.offer(batch{}), "nobody is there")
	}
}

// TestQueueOrder: what came first is taken first, also by the worker that was woken for what came last.
func TestQueueOrder(t *testing.T) {
	q, p := newQueue(), newPlaces(0, 0)
	for k := range uint64(5) {
		q.add(batch{bytes: k})
	}
	require.False(t, q.offer(batch{bytes: 9}), "nobody waits")
	w := newWaiter()
	for k := range uint64(5) {
		b, ok, moved := q.take(w, &p.threads, wants{})
		require.True(t, ok)
		require.False(t, moved)
		require.Equal(t, k, b.bytes)
	}
	passed := make(chan struct{})
	go func() {
		q.pass(batch{bytes: 5})
		close(passed)
	}()
	select {
	case <-passed:
		t.Fatal("nobody has taken it")
	case <-time.After(10 * time.Millisecond):
	}
	b, _, _ := q.take(w, &p.threads, wants{})
	require.EqualValues(t, 5, b.bytes)
	<-passed
	q.add(batch{bytes: 6})
	q.end()
	b, ok, _ := q.take(w, &p.threads, wants{})
	require.True(t, ok, "what is there at the end is carried out")
	require.EqualValues(t, 6, b.bytes)
	_, ok, _ = q.take(w, &p.threads, wants{})
	require.False(t, ok)
}

// TestQueueThreads: half of many processors are had by workers that wait as threads, none of few, and they are woken first.
func TestQueueThreads(t *testing.T) {
	defer func(was int) { processors = was }(processors)
	for _, c := range []struct{ processors, threads int }{{2, 0}, {threadsLeast - 1, 0}, {threadsLeast, threadsLeast / 2}, {20, 10}} {
		processors = c.processors
		q, p := newQueue(), newPlaces(0, 0)
		q.asThread = time.Hour
		var all sync.WaitGroup
		for range 12 {
			all.Go(func() {
				w := newWaiter()
				for ok := true; ok; {
					_, ok, _ = q.take(w, &p.threads, wants{})
				}
			})
		}
		settled := func() bool {
			q.mu.Lock()
			defer q.mu.Unlock()
			return len(q.threads) == c.threads && len(q.goroutines) == 12-c.threads
		}
		for range 3 {
			require.Eventually(t, settled, time.Minute, time.Millisecond, "of %d processors", c.processors)
			require.EqualValues(t, c.threads, p.threads.Load())
			for range 12 {
				q.offer(batch{})
			}
		}
		require.Eventually(t, settled, time.Minute, time.Millisecond)
		q.mu.Lock()
		w, thread := q.idleLocked()
		require.Equal(t, max(c.threads-1, 0), len(q.threads), "threads are woken first")
		q.mu.Unlock()
		w.wake(thread)
		q.end()
		all.Wait()
		require.Zero(t, p.threads.Load())
	}
}

// TestQueueThreadsRest: what has waited as a thread for long waits as a goroutine, from which another ring may want its place.
func TestQueueThreadsRest(t *testing.T) {
	defer func(was int) { processors = was }(processors)
	processors = threadsLeast
	q, p := newQueue(), newPlaces(0, 0)
	q.asThread = time.Millisecond
	wanted, ended := make(chan struct{}), make(chan bool)
	go func() {
		w := newWaiter()
		_, ok, moved := q.take(w, &p.threads, wants{wanted})
		ended <- !ok && moved
	}()
	wanted <- struct{}{}
	require.True(t, <-ended)
	require.Empty(t, q.threads)
	require.Empty(t, q.goroutines)
	require.Zero(t, p.threads.Load())
}

// TestBegunWorker: a worker that is begun for a batch has it, however soon it looks.
func TestBegunWorker(t *testing.T) {
	for range 300 {
		r := newRing(newPlaces(0, 0).tenant(1), never(), [2]*moved{{}, {}})
		theirs, err := r.make(8)
		require.NoError(t, err)
		wire.CloseAll(theirs)
		require.True(t, r.offer(batch{jobs: []job{{err: errEnding}}}))
		require.Eventually(t, func() bool { return r.inFlight.Load() == -1 }, time.Minute, 10*time.Microsecond)
		r.queue.end()
		r.workers.Wait()
		r.free()
	}
}
