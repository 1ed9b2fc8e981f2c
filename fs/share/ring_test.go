package share

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/wire"
)

// never is of transfers that nothing ends early.
func never() ends { return ends{mount: new(atomic.Bool), client: new(atomic.Bool)} }

// loneRing is a ring whose goroutines have not begun, and its client's doorbell. The test ends the ring.
func loneRing(t *testing.T, ending ends) (r *ring, bell int) {
	t.Helper()
	r = newRing(newPlaces(8, 8).tenant(1), ending, [2]*moved{{}, {}})
	theirs, err := r.make(8)
	require.NoError(t, err)
	t.Cleanup(func() { wire.CloseAll(theirs) })
	return r, theirs[0]
}

// TestBrokenRingEndsWhatItTook: what a ring has taken is carried out, also what no worker has yet when its client breaks the protocol or goes: else those who wait for it
// would do so for ever.
func TestBrokenRingEndsWhatItTook(t *testing.T) {
	for name, ends := range map[string]func(r *ring){
		"impossible counters": func(r *ring) { r.rings.Word32(0).Store(1000) },
		"the end":             func(r *ring) { r.stop() },
	} {
		r, _ := loneRing(t, never())
		r.lead.Lock()
		r.waiting = batch{jobs: []job{{err: unix.EBADF}, {err: unix.EBADF}}}
		r.inFlight.Store(2)
		ends(r)
		r.takeAll()
		r.queue.end()
		r.workers.Wait()
		require.Zero(t, r.inFlight.Load(), name)
		require.True(t, r.end.Load(), name)
		require.True(t, r.lead.TryLock(), "%s: nobody leads", name)
		r.free()
	}
}

// TestCalledMeanwhile: a client that signals while one goroutine is about to give up the lead has woken the other, which could not have it. What was submitted
// is taken all the same.
func TestCalledMeanwhile(t *testing.T) {
	r, bell := loneRing(t, never())
	r.lead.Lock() // the one that leads; it has looked at the ring for the last time
	r.done.Go(r.run)
	called := func() bool { return r.called.Load() }
	require.Eventually(t, called, time.Minute, time.Millisecond, "it begins with a look")
	r.called.Store(false)
	client, err := wire.NewRings(r.rings.Shared, 8)
	require.NoError(t, err)
	_, err = client.Submit([]wire.Submission{{Op: wire.OpSync, Data: 7}})
	require.NoError(t, err)
	wire.RingDoorbell(bell)
	require.Eventually(t, called, time.Minute, time.Millisecond)
	require.True(t, r.rings.Submitted(), "nobody has taken it")
	r.leave()
	var done [1]wire.Completion
	require.Eventually(t, func() bool { n, err := client.Reap(done[:]); return err == nil && n == 1 }, time.Minute, time.Millisecond)
	require.Equal(t, wire.Completion{Data: 7, Result: -int64(unix.EBADF)}, done[0])
	r.stop()
	r.done.Wait()
	r.queue.end()
	r.workers.Wait()
	r.free()
}

// TestEndingBatch: of a client that has gone, and at the mount's end, nothing is begun any more.
func TestEndingBatch(t *testing.T) {
	for _, end := range []func(ends){func(e ends) { e.mount.Store(true) }, func(e ends) { e.client.Store(true) }} {
		endingBatch(t, end)
	}
}

func endingBatch(t *testing.T, end func(ends)) {
	t.Helper()
	r, _ := loneRing(t, never())
	defer r.free()
	end(r.ending)
	s := &scratch{}
	r.carryOut([]job{{Submission: wire.Submission{Op: wire.OpSync}}, {Submission: wire.Submission{Op: wire.OpRead, Len: 1}},
		{Submission: wire.Submission{Op: wire.OpWrite, Len: 1}}, {err: unix.EBADF}}, s) // of no file: who begins one fails
	const gone, bad = -int64(unix.ESHUTDOWN), -int64(unix.EBADF)
	require.Equal(t, []int64{gone, gone, gone, bad}, s.results[:4])
}

// TestTake: no more is taken than there is room for completions, also of what is in flight; and a ring without room has nothing to do.
func TestTake(t *testing.T) {
	r, _ := loneRing(t, never())
	defer r.free()
	const most = 16 // completions of a ring of 8
	require.False(t, r.pending())
	client, err := wire.NewRings(r.rings.Shared, 8)
	require.NoError(t, err)
	_, err = client.Submit(make([]wire.Submission, 5))
	require.NoError(t, err)
	var buf [batchEntries]wire.Submission
	take := func(n int) {
		t.Helper()
		require.Equal(t, n > 0, r.pending())
		got, err := r.take(buf[:])
		require.NoError(t, err)
		require.Equal(t, n, got)
	}
	r.inFlight.Store(most - 3)
	r.rings.Complete(wire.Completion{})
	take(2)
	require.EqualValues(t, most-1, r.inFlight.Load())
	take(0)
	_, err = client.Reap(make([]wire.Completion, 1))
	require.NoError(t, err)
	take(1)
	take(0)
	r.inFlight.Store(0)
	take(2)
	require.EqualValues(t, 2, r.inFlight.Load())
	take(0)
}

// TestLooksOnceMore: what came before the ring's word said that the daemon sleeps nobody signals. So the leader looks, and then a worker has what it would have carried out.
func TestLooksOnceMore(t *testing.T) {
	for _, more := range []int32{0, 1} {
		r, _ := loneRing(t, never())
		client, err := wire.NewRings(r.rings.Shared, 8)
		require.NoError(t, err)
		_, err = client.Submit(make([]wire.Submission, more))
		require.NoError(t, err)
		r.inFlight.Store(1)
		r.lead.Lock()
		require.True(t, r.carryOutOnly(batch{jobs: []job{{Submission: wire.Submission{Op: wire.OpWrite}, err: unix.EBADF}}}), "it still leads, or leads again")
		require.False(t, r.lead.TryLock())
		require.Equal(t, more, r.started.Load(), "workers")
		require.False(t, client.WakeDaemon(), "it looks by itself")
		r.queue.end()
		r.workers.Wait()
		require.Zero(t, r.inFlight.Load())
		r.free()
	}
}

// TestMostWorkers: a ring has so many workers, and no more.
func TestMostWorkers(t *testing.T) {
	for _, had := range []int32{maxWorkers - 1, maxWorkers} {
		r, _ := loneRing(t, never())
		r.started.Store(had)
		r.inFlight.Store(1)
		r.waiting = batch{jobs: []job{{err: unix.EBADF}}}
		if had == maxWorkers {
			r.workers.Go(func() { r.worker(true) }) // the one that comes back
		}
		r.dispatchWaiting()
		require.EqualValues(t, maxWorkers, r.started.Load())
		r.queue.end()
		r.workers.Wait()
		require.Zero(t, r.inFlight.Load())
		r.free()
	}
}

// TestForget: a handle that a request names stays until that has ended; one that is forgotten or removed no request can name, also not the next one after such a request.
func TestForget(t *testing.T) {
	r, _ := loneRing(t, never())
	defer r.free()
	for n, remove := range map[uint32]func(number uint32) bool{7: r.forget, 8: func(number uint32) bool { r.removeHandle(number); return true }} {
		r.addHandle(n, &file{})
		var j job
		require.NotNil(t, r.nameLocked(&j, n))
		require.False(t, r.forget(n), "it is in use")
		require.NotNil(t, r.nameLocked(&job{}, n))
		r.uses[n].n -= 2
		require.True(t, remove(n))
		require.Nil(t, r.nameLocked(&job{}, n))
		require.True(t, r.forget(n), "nobody uses what is not there")
	}
}

// TestReleaseOfRingThatEnds: a release that waits for what was put in ends with the ring, whose client does what it likes with the counters.
func TestReleaseOfRingThatEnds(t *testing.T) {
	for name, ends := range map[string]func(r *ring){
		"impossible counters": func(r *ring) { r.rings.Word32(0).Store(1000); r.lead.Lock(); r.takeAll() },
		"fewer than before":   func(r *ring) { r.rings.Word32(0).Store(1); r.close(&conn{}) },
		"nothing was taken":   func(r *ring) { r.close(&conn{}) },
	} {
		r, _ := loneRing(t, never())
		r.addHandle(7, &file{})
		client, err := wire.NewRings(r.rings.Shared, 8)
		require.NoError(t, err)
		_, err = client.Submit(make([]wire.Submission, 3))
		require.NoError(t, err)
		wait := r.removeHandle(7)
		require.NotNil(t, wait, name)
		released := make(chan struct{})
		go func() { defer close(released); wait() }()
		select {
		case <-released:
			require.FailNow(t, "three are not taken", name)
		case <-time.After(10 * time.Millisecond):
		}
		ends(r)
		<-released
		require.Empty(t, r.uses, name)
	}
}

// TestRingCloses: a ring that is closed gives its workers' places back, and the connection has it no more.
func TestRingCloses(t *testing.T) {
	r, _ := loneRing(t, never())
	c := &conn{rings: map[*ring]bool{r: true}}
	r.done.Go(r.run)
	for range 3 {
		require.True(t, r.begin(nil))
	}
	require.Equal(t, 2, taken(r.tenant))
	r.close(c)
	require.Zero(t, taken(r.tenant))
	require.Empty(t, c.rings)
}

// TestRingClosesWhileOneHangs: workers with nothing to do end, and give their places back, while the request of another one does not end.
func TestRingClosesWhileOneHangs(t *testing.T) {
	r, _ := loneRing(t, never())
	c := &conn{rings: map[*ring]bool{r: true}}
	for range 3 {
		require.True(t, r.begin(nil))
	}
	r.mu.Lock() // which a completion takes
	require.True(t, busy(r))
	require.Equal(t, 3, taken(r.tenant))
	closed := make(chan struct{})
	go func() { defer close(closed); r.close(c) }()
	require.Eventually(t, func() bool { return taken(r.tenant) <= 1 }, time.Minute, time.Millisecond)
	select {
	case <-closed:
		require.FailNow(t, "its request has not ended")
	default:
	}
	r.mu.Unlock()
	<-closed
	require.Zero(t, taken(r.tenant))
	require.Empty(t, c.rings)
}
