package bench

import (
	"math/bits"
	"time"
)

// Histogram counts durations in buckets, 32 for each doubling, from a nanosecond on: a quantile is at most 3 % too long. That is finer than
// blockdev/latency's, which every request of a mount pays for, and which does not tell apart what is shorter than 128 ns, as most steps
// of a command are. One goroutine has it.
type Histogram struct {
	counts [histBuckets]uint64
	n      uint64
	sum    time.Duration
	least  time.Duration
	most   time.Duration
}

const (
	histParts   = 32
	histBits    = 5
	histDoubles = 40 // 2^40 ns are 18 minutes; what is longer is in the last bucket
	histBuckets = (histDoubles - histBits + 1) * histParts
)

func histBucket(d uint64) int {
	if d < histParts {
		return int(d)
	}
	e := bits.Len64(d) - 1 - histBits
	return min((e+1)*histParts+int(d>>e)&(histParts-1), histBuckets-1)
}

// histEnd is the longest duration of a bucket.
func histEnd(i int) time.Duration {
	if i < histParts {
		return time.Duration(i)
	}
	e := i/histParts - 1
	return time.Duration(uint64(histParts+i%histParts+1)<<e - 1)
}

// Add counts a duration.
func (h *Histogram) Add(d time.Duration) {
	d = max(d, 0)
	h.counts[histBucket(uint64(d))]++
	if h.n == 0 || d < h.least {
		h.least = d
	}
	h.n++
	h.sum += d
	h.most = max(h.most, d)
}

// Merge adds what another has counted.
func (h *Histogram) Merge(o *Histogram) {
	if o.n == 0 {
		return
	}
	if h.n == 0 || o.least < h.least {
		h.least = o.least
	}
	for i, n := range o.counts {
		h.counts[i] += n
	}
	h.n, h.sum, h.most = h.n+o.n, h.sum+o.sum, max(h.most, o.most)
}

// Quantile is a duration that the part q of all did not exceed.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.n == 0 {
		return 0
	}
	want := uint64(q * float64(h.n))
	if float64(want) < q*float64(h.n) {
		want++
	}
	want = min(max(want, 1), h.n)
	seen := uint64(0)
	for i, n := range h.counts {
		if seen += n; seen >= want {
			return min(histEnd(i), h.most)
		}
	}
	return h.most
}
