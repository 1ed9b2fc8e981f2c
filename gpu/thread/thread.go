// Package thread knows which goroutines are locked to their thread. Go's runtime does not say, and ends the process where such a goroutine switches to a coroutine that another one
// made, which gpu/copyengine does. So a goroutine that may have memory of a GPU copied locks its thread here. Cond is for those
// that wait for one another. A system call between Enter or Block and Leave needs no Go processor.
package thread

import (
	"maps"
	"runtime"
	"sync"
	"sync/atomic"
)

var (
	mu     sync.Mutex                       // held for changes
	locked atomic.Pointer[map[uintptr]bool] // by self. Each change makes a new one
)

// Lock is runtime.LockOSThread, for a goroutine whose thread ends with it. The function that it returns is called at the goroutine's end.
func Lock() (end func()) {
	runtime.LockOSThread()
	me := Self()
	change(func(all map[uintptr]bool) { all[me] = true })
	return func() { change(func(all map[uintptr]bool) { delete(all, me) }) }
}

func change(f func(map[uintptr]bool)) {
	mu.Lock()
	defer mu.Unlock()
	all := map[uintptr]bool{}
	if p := locked.Load(); p != nil {
		all = maps.Clone(*p)
	}
	f(all)
	locked.Store(&all)
}

// Locked says whether the calling goroutine has called Lock.
func Locked() bool {
	p := locked.Load()
	return p != nil && len(*p) > 0 && (*p)[Self()]
}
