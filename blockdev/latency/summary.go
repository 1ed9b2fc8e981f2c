package latency

import "time"

// Summary is what a histogram has counted. Quantiles are the ends of their buckets, at most an eighth too long, but not beyond Max.
type Summary struct {
	Layer string        `json:"layer"`
	Kind  string        `json:"kind"`
	Count uint64        `json:"count"`
	Sum   time.Duration `json:"sum_ns"`
	P50   time.Duration `json:"p50_ns"`
	P99   time.Duration `json:"p99_ns"`
	Max   time.Duration `json:"max_ns"`
	// Buckets counts the operations that were shorter than each of Bounds, cumulatively.
	Buckets []uint64 `json:"-"`
}

// Mean is the average.
func (s Summary) Mean() time.Duration { return s.Sum / time.Duration(max(s.Count, 1)) }

// Bounds are the bounds of Summary.Buckets: powers of two from 1.024 µs to 34 s.
var Bounds = func() (b []time.Duration) {
	for d := time.Duration(1024); d <= 1<<35; d *= 2 {
		b = append(b, d)
	}
	return b
}()

// Summaries are those of the kinds that have been counted, in the order of kinds.
func (l *Layer) Summaries() []Summary {
	if l == nil {
		return nil
	}
	var out []Summary
	for i := range l.h {
		if s := l.h[i].summary(); s.Count > 0 {
			s.Layer, s.Kind = l.name, l.kinds[i]
			out = append(out, s)
		}
	}
	return out
}

func (h *Histogram) summary() Summary {
	var counts [buckets]uint64
	s := Summary{Buckets: make([]uint64, len(Bounds))}
	for i := range counts {
		counts[i] = h.counts[i].Load()
		s.Count += counts[i]
	}
	s.Sum, s.Max = time.Duration(h.sum.Load()), time.Duration(h.max.Load())
	if s.Count == 0 {
		return s
	}
	seen, b := uint64(0), 0
	half, most := (s.Count+1)/2, s.Count-s.Count/100
	for i, n := range counts {
		for b < len(Bounds) && bound(i) > Bounds[b] {
			s.Buckets[b] = seen
			b++
		}
		if seen < half && seen+n >= half {
			s.P50 = min(bound(i), s.Max)
		}
		if seen < most && seen+n >= most {
			s.P99 = min(bound(i), s.Max)
		}
		seen += n
	}
	for ; b < len(Bounds); b++ {
		s.Buckets[b] = seen
	}
	return s
}
