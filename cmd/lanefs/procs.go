package main

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lanefs/lanefs/fs"
	"github.com/lanefs/lanefs/fs/uring"
)

// A thread that waits in the kernel keeps its Go processor until the scheduler's monitor takes it away, so where more threads take turns
// than there are processors, some find none free and wait for the monitor. More processors than needed are no help either: what becomes
// runnable is then taken up by a thread that must be woken first. A GOMAXPROCS of the user's stays.

// addProcs gives the Go scheduler as many processors more as threads wait in read(2) of /dev/fuse: else, with two CPUs, random reads
// and writes of 4 KiB are 15 % slower, creates 30 %. It is called once, after the mount was made: go-fuse counts the processors then.
// With requests on rings, where /dev/fuse has little to bring, it is what threads of rings keep while they wait; crowd gives more.
func addProcs(rings bool) {
	if ownProcs() {
		return
	}
	more := fs.Readers(runtime.GOMAXPROCS(0))
	if rings {
		more = keepers()
	}
	moreProcs(more)
}

var changingProcs sync.Mutex

// moreProcs gives the Go scheduler n processors more, or takes as many. Requests come as soon as the mount is made, so there may be a crowd before addProcs.
func moreProcs(n int) {
	changingProcs.Lock()
	defer changingProcs.Unlock()
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + n)
}

// keepers is how many threads of rings may keep their processor while they wait.
func keepers() int {
	if ownProcs() {
		return 0
	}
	return uring.DefaultKeepers(runtime.NumCPU())
}

// ownProcs says whether the user has said how many processors there are.
func ownProcs() bool { return os.Getenv("GOMAXPROCS") != "" }

// crowd gives the Go scheduler more processors while many requests on rings are under way at once: programs that fsync, mostly. A program that works
// alone has one request at a time, and is served best with few: with 18 instead of 2 processors `cp -a` takes a third more time.
type crowd struct {
	seen   atomic.Int64 // crowded requests since the last look
	raised atomic.Bool
}

const (
	crowdLook   = 250 * time.Millisecond // between looks, and so the shortest time for which there are more
	crowdEnough = 100                    // requests between two looks
)

// note is called for a request that finds many others under way.
func (c *crowd) note() {
	if c.seen.Add(1) >= crowdEnough && !c.raised.Load() && c.raised.CompareAndSwap(false, true) {
		go c.raise()
	}
}

// raise gives more processors for as long as there is a crowd.
func (c *crowd) raise() {
	n := uring.DefaultServers(runtime.NumCPU())
	moreProcs(n)
	for c.seen.Swap(0) >= crowdEnough {
		time.Sleep(crowdLook)
	}
	moreProcs(-n)
	c.raised.Store(false)
}

// noteCrowd is what a mount calls for requests that find many others under way; nil if the user has said how many processors there are.
func noteCrowd() func() {
	if ownProcs() {
		return nil
	}
	return new(crowd).note
}
