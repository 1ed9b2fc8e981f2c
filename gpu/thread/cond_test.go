package thread_test

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu/thread"
)

// TestCond: one call of Signal wakes one that waits, the others all, whether they are locked to their threads or not, and none is woken that came later.
func TestCond(t *testing.T) {
	const each = 7
	var mu sync.Mutex
	c := thread.NewCond(&mu)
	waiting, woken := 0, 0
	var done sync.WaitGroup
	wait := func(lock bool) {
		done.Go(func() {
			if lock {
				defer thread.Lock()()
			}
			mu.Lock()
			defer mu.Unlock()
			waiting++
			c.Wait()
			woken++
		})
	}
	until := func(what *int, n int) {
		t.Helper()
		require.Eventually(t, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return *what == n
		}, time.Minute, 100*time.Microsecond)
	}
	held := func(f func()) {
		mu.Lock()
		defer mu.Unlock()
		f()
	}
	held(c.Signal) // for nobody
	held(c.Broadcast)
	for i := range 2 * each {
		wait(i%2 == 0)
	}
	until(&waiting, 2*each)
	runtime.GC() // stops all, and those that wait with it
	for i := range 2 * each {
		if i == each/2 || i == each+3 {
			time.Sleep(10 * time.Millisecond)
			held(func() { require.Equal(t, i, woken) })
		}
		held(c.Signal)
		until(&woken, i+1)
	}
	for i := range 2 * each {
		wait(i%2 == 0)
	}
	until(&waiting, 4*each)
	held(c.Broadcast)
	until(&woken, 4*each)
	for i := range 2 * each {
		wait(i%2 == 0)
	}
	until(&waiting, 6*each)
	held(c.BroadcastUnlocked)
	until(&woken, 6*each)
	done.Wait()
}

// TestCondCrowd: locked goroutines, of which there are many more than Go processors, pass a number around and lose no turn.
func TestCondCrowd(t *testing.T) {
	const crowd, rounds = 16, 40
	var mu sync.Mutex
	c := thread.NewCond(&mu)
	turn, over := 0, false
	var beside atomic.Int64
	var others, done sync.WaitGroup
	for range 2 {
		others.Go(func() { // what is not locked goes on
			for mu.Lock(); !over; mu.Lock() {
				beside.Add(1)
				mu.Unlock()
				runtime.Gosched()
			}
			mu.Unlock()
		})
	}
	for i := range crowd {
		done.Go(func() {
			defer thread.Lock()()
			for range rounds {
				mu.Lock()
				for turn%crowd != i {
					c.Wait()
				}
				turn++
				if i%2 == 0 {
					c.Broadcast()
				} else {
					c.BroadcastUnlocked()
				}
				mu.Unlock()
			}
		})
	}
	done.Wait()
	mu.Lock()
	over = true
	require.Equal(t, crowd*rounds, turn)
	mu.Unlock()
	others.Wait()
	require.Positive(t, beside.Load())
}

// TestCondAllocs: to wait allocates nothing.
func TestCondAllocs(t *testing.T) {
	defer thread.Lock()()
	var mu sync.Mutex
	c := thread.NewCond(&mu)
	var waiting, over bool
	var done sync.WaitGroup
	done.Go(func() {
		for {
			mu.Lock()
			if waiting {
				waiting = false
				c.Signal()
			}
			end := over
			mu.Unlock()
			if end {
				return
			}
			runtime.Gosched()
		}
	})
	require.Less(t, testing.AllocsPerRun(200, func() {
		mu.Lock()
		waiting = true
		c.Wait()
		mu.Unlock()
	}), 1.0)
	mu.Lock()
	over = true
	mu.Unlock()
	done.Wait()
}
