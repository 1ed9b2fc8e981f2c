// Package hostile opens, walks and changes damaged volumes with fs/ext4: samples of e2fsprogs' own tests, and volumes that a
// fuzzer damages. It has tests only.
//
// The nouns: a sample is a damaged image of e2fsprogs' own tests. A medium is a device in memory that counts requests and
// refuses more than a small volume needs. A tour walks a volume and records what each file holds; churn changes the volume. A
// verdict is what e2fsck finds in an image.
//
// What must hold: nothing panics, hangs, reads without end or outside the volume. A read-only mount writes nothing. Corruption
// is returned as ErrCorrupt, logged in one line, and turns the volume read-only. After changes, e2fsck finds no kind of problem
// that was not there before and repairs what it could repair before, and files that were intact still are.
package hostile

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"time"
)

// Limits of one use of a volume, far above what any sample needs.
const (
	maxRequests = 300_000
	maxTime     = 3 * time.Minute // on a loaded machine
	maxHeap     = 3 << 30         // of the whole process
)

var heapPeak atomic.Uint64

func TestMain(m *testing.M) {
	go watchHeap()
	code := m.Run()
	if testing.Verbose() {
		fmt.Printf("largest heap: %d MiB\n", heapPeak.Load()>>20)
	}
	os.Exit(code)
}

// watchHeap ends the process when it allocates without bound, before the kernel kills it for that.
func watchHeap() {
	for {
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		heapPeak.Store(max(heapPeak.Load(), s.HeapAlloc))
		if s.HeapAlloc > maxHeap {
			panic(fmt.Sprintf("heap of %d MiB: something allocates without bound", s.HeapAlloc>>20))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// bounded runs f. If f panics or takes too long the test fails, with the stacks of all goroutines.
func bounded(t testing.TB, f func()) {
	t.Helper()
	done := make(chan string, 1)
	go func() {
		said := "the test ended its goroutine" // FailNow
		defer func() {
			if r := recover(); r != nil {
				said = fmt.Sprintf("panic: %v\n%s", r, debug.Stack())
			}
			done <- said
		}()
		f()
		said = ""
	}()
	timeout := time.NewTimer(maxTime)
	defer timeout.Stop()
	select {
	case said := <-done:
		if said != "" {
			t.Fatal(said)
		}
	case <-timeout.C:
		b := make([]byte, 1<<20)
		t.Fatalf("not finished after %v:\n%s", maxTime, b[:runtime.Stack(b, true)])
	}
}
