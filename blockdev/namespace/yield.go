package namespace

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/latency"
)

// yields has a goroutine that does nothing but call Do meet Go's scheduler now and then.
//
// On the CPU each call waits in system calls, so such a goroutine never does. After 10 ms of that Go's monitor thread takes its processor away in every system call that it sees (retake in
// runtime/proc.go of Go 1.26 renews the time that it measures only for a processor that has scheduled meanwhile). Then all processors are idle, and the monitor goes to sleep. So the end of each call finds
// another processor and wakes the monitor, which looks after 20 µs and takes that one, too: as much CPU time again as a read of 1 MiB takes, some of it between the calls, where the device waits.
//
// Only calls with long commands yield: a short one is over before the monitor looks twice, and Gosched costs it more, since it wakes a thread where a processor is idle.
type yields struct{ last atomic.Int64 } // when one did, on the clock of package latency

const (
	yieldEvery = 8 * time.Millisecond // less than those 10 ms
	yieldLeast = 128 << 10            // bytes of a command
)

var gosched = runtime.Gosched // replaced by tests

// ended follows a call whose first command had n bytes, and which has ended at c, if that was read.
func (y *yields) ended(n blockdev.Bytes, c *latency.Clock) {
	if n < yieldLeast {
		return
	}
	now := int64(c.Since(&latency.Clock{}))
	if last := y.last.Load(); now-last >= int64(yieldEvery) && y.last.CompareAndSwap(last, now) {
		gosched()
	}
}
