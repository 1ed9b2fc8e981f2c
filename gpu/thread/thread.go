// Package thread knows which goroutines are locked to their thread. Go's runtime does not say, and ends the process where such a goroutine switches to a coroutine that another one
// made, which gpu/copyengine does. So a goroutine that may have memory of a GPU copied locks its thread here.
package thread

import (
	"maps"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

var (
	mu     sync.Mutex                   // held for changes
	locked atomic.Pointer[map[int]bool] // the numbers of threads. Each change makes a new one
)

// Lock is runtime.LockOSThread, for a goroutine whose thread ends with it. The function that it returns is called at the goroutine's end.
func Lock() (end func()) {
	runtime.LockOSThread()
	tid := unix.Gettid()
	change(func(all map[int]bool) { all[tid] = true })
	return func() { change(func(all map[int]bool) { delete(all, tid) }) }
}

func change(f func(map[int]bool)) {
	mu.Lock()
	defer mu.Unlock()
	all := map[int]bool{}
	if p := locked.Load(); p != nil {
		all = maps.Clone(*p)
	}
	f(all)
	locked.Store(&all)
}

// Locked says whether the calling goroutine has called Lock. One that is not locked never runs on the thread of one that is.
func Locked() bool {
	p := locked.Load()
	return p != nil && len(*p) > 0 && (*p)[unix.Gettid()]
}
