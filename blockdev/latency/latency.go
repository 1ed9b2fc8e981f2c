// Package latency measures how long operations take. A Layer has one Histogram for each kind of operation of one layer of the mount (FUSE
// requests, commands on a lane); Start and End time one operation. While the process records a Go execution trace (runtime/trace), each
// timed operation is a region of it, too, so that one request can be followed through the layers of its goroutine.
//
// The package imports nothing of LaneFS. Timing one operation costs two readings of the monotonic clock and three atomic additions, and
// allocates nothing.
package latency

import (
	"context"
	"math/bits"
	"runtime/trace"
	"sync/atomic"
	"time"
)

// Layer is the histograms of one layer. A nil Layer measures nothing.
type Layer struct {
	name  string
	kinds []string
	spans []string // names of the regions in a trace
	h     []Histogram
	also  *Layer // whose operations are this layer's, too
	watch atomic.Pointer[watch]
}

// watch waits for a slow operation.
type watch struct {
	since time.Duration // by this package's clock; operations that began before do not count
	least time.Duration
	met   chan struct{} // with room for one
}

// NewLayer makes a layer with a histogram for each kind. Kinds are numbered from 0, in this order.
func NewLayer(name string, kinds ...string) *Layer {
	l := &Layer{name: name, kinds: kinds, spans: make([]string, len(kinds)), h: make([]Histogram, len(kinds))}
	for i, k := range kinds {
		l.spans[i] = name + " " + k
	}
	return l
}

// Include has the summaries count the operations of another layer, of the same kinds, too: what several layers did at the same time is then
// counted once. It is called before anything is timed.
func (l *Layer) Include(also *Layer) { l.also = also }

// Op is an operation under way.
type Op struct {
	h      *Histogram
	start  time.Duration
	region *trace.Region // nil: no trace is recorded
	l      *Layer        // with region
}

// began is where this package's clock starts.
var began = time.Now()

func now() time.Duration { return time.Since(began) }

// Start begins to time an operation.
func (l *Layer) Start(kind int) Op { return l.StartBy(&Clock{}, kind) }

// StartBy is Start by a clock.
func (l *Layer) StartBy(c *Clock, kind int) Op {
	if l == nil {
		return Op{}
	}
	o := Op{h: &l.h[kind], start: c.now()}
	if trace.IsEnabled() {
		o.region, o.l = trace.StartRegion(context.Background(), l.spans[kind]), l
	}
	return o
}

// End counts the operation. It must be called by the goroutine that called Start.
func (o Op) End() { o.EndBy(&Clock{}) }

// Clock is a reading of the clock for operations that begin, or end, one right after the other: the first takes it. The zero value has none.
type Clock struct {
	at   time.Duration
	read bool
}

func (c *Clock) now() time.Duration {
	if !c.read {
		c.at, c.read = now(), true
	}
	return c.at
}

// ReadClock gives a clock that has been read.
func ReadClock() Clock { return Clock{at: now(), read: true} }

// Since is the time from another clock's reading to this one's. Both have one.
func (c *Clock) Since(begin *Clock) time.Duration { return c.at - begin.at }

// EndBy is End by a clock.
func (o Op) EndBy(c *Clock) {
	if o.h == nil {
		return
	}
	d := c.now() - o.start
	o.h.Add(d)
	if o.region != nil {
		o.region.End()
		o.l.slow(o.start, d)
	}
}

// slow tells who watches of an operation that began at start and took d.
func (l *Layer) slow(start, d time.Duration) {
	if w := l.watch.Load(); w != nil && start >= w.since && d >= w.least {
		select {
		case w.met <- struct{}{}:
		default:
		}
	}
}

// Watch gives a channel that gets a value when an operation of the layer that began after the call, while a trace was recorded, has taken
// least or longer, until stop is called. A trace that was started before the call has all of such an operation. There is one watch at a
// time: a later one takes the place of an earlier.
func (l *Layer) Watch(least time.Duration) (met <-chan struct{}, stop func()) {
	w := &watch{now(), least, make(chan struct{}, 1)}
	l.watch.Store(w)
	return w.met, func() { l.watch.CompareAndSwap(w, nil) }
}

// Add counts an operation that somebody else timed.
func (l *Layer) Add(kind int, d time.Duration) {
	if l != nil {
		l.h[kind].Add(d)
	}
}

// Histogram counts durations in buckets, eight for each doubling, so that a quantile is at most an eighth too long. The zero value is
// empty. All methods may be called from any goroutine.
type Histogram struct {
	counts [buckets]atomic.Uint64
	sum    atomic.Int64 // nanoseconds
	max    atomic.Int64 // nanoseconds
}

const (
	parts    = 8  // buckets for each doubling, a power of two
	partBits = 3  // log2 of parts
	least    = 7  // the first doubling ends at 2^least nanoseconds; what is shorter is in the first bucket
	most     = 37 // durations from 2^most nanoseconds, 137 s, on are in the last bucket
	buckets  = (most-least)*parts + 2
)

// bucket is the index of the bucket of a duration of ns nanoseconds.
func bucket(ns uint64) int {
	if ns < 1<<least {
		return 0
	}
	if ns >= 1<<most {
		return buckets - 1
	}
	e := bits.Len64(ns) - 1
	return 1 + (e-least)*parts + int(ns>>(e-partBits))&(parts-1)
}

// bound is the end of a bucket: durations in it are shorter.
func bound(i int) time.Duration {
	if i == 0 {
		return 1 << least
	}
	i--
	e := least + i/parts
	return time.Duration((parts + uint64(i%parts) + 1) << (e - partBits))
}

// Add counts a duration. One that is negative counts as none.
func (h *Histogram) Add(d time.Duration) {
	d = max(d, 0)
	h.counts[bucket(uint64(d))].Add(1)
	h.sum.Add(int64(d))
	h.longest(int64(d))
}

func (h *Histogram) longest(d int64) {
	for m := h.max.Load(); d > m && !h.max.CompareAndSwap(m, d); m = h.max.Load() {
	}
}

// Batch counts durations of one Histogram after another with few atomic additions: those of one bucket in a row are added together. The
// zero value is empty. A Batch belongs to one goroutine.
type Batch struct {
	h      *Histogram
	bucket int
	count  uint64
	sum    int64 // nanoseconds
	max    int64
}

// AddTo is Add by way of a batch, whose End the caller calls.
func (l *Layer) AddTo(b *Batch, kind int, d time.Duration) {
	if l == nil {
		return
	}
	d = max(d, 0)
	h, at := &l.h[kind], bucket(uint64(d))
	if h != b.h || at != b.bucket {
		b.End()
		*b = Batch{h: h, bucket: at}
	}
	b.count++
	b.sum += int64(d)
	b.max = max(b.max, int64(d))
}

// End counts what was added since the last End.
func (b *Batch) End() {
	if b.h == nil {
		return
	}
	b.h.counts[b.bucket].Add(b.count)
	b.h.sum.Add(b.sum)
	b.h.longest(b.max)
	*b = Batch{}
}
