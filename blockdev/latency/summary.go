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
	Buckets []uint64 `json:"buckets"`
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
		var also *Histogram
		if l.also != nil {
			also = &l.also.h[i]
		}
		if s := l.h[i].summary(also); s.Count > 0 {
			s.Layer, s.Kind = l.name, l.kinds[i]
			out = append(out, s)
		}
	}
	return out
}

// summary is that of all that h and also have counted. also may be nil.
func (h *Histogram) summary(also *Histogram) Summary {
	var counts [buckets]uint64
	s := Summary{Buckets: make([]uint64, len(Bounds))}
	for _, h := range []*Histogram{h, also} {
		if h == nil {
			continue
		}
		for i := range counts {
			n := h.counts[i].Load()
			counts[i] += n
			s.Count += n
		}
		s.Sum, s.Max = s.Sum+time.Duration(h.sum.Load()), max(s.Max, time.Duration(h.max.Load()))
	}
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

// Since is what was counted after an earlier summary of the same histogram. Its quantiles come of Buckets, so they are at most twice
// too long; Max is not known, and 0.
func (s Summary) Since(before Summary) Summary {
	d := Summary{Layer: s.Layer, Kind: s.Kind, Count: s.Count - before.Count, Sum: s.Sum - before.Sum, Buckets: make([]uint64, len(s.Buckets))}
	for i := range s.Buckets {
		d.Buckets[i] = s.Buckets[i]
		if i < len(before.Buckets) {
			d.Buckets[i] -= before.Buckets[i]
		}
	}
	d.P50, d.P99 = d.quantile(d.Count-d.Count/2), d.quantile(d.Count-d.Count/100)
	return d
}

// quantile is the bound that n operations were shorter than.
func (s Summary) quantile(n uint64) time.Duration {
	if n == 0 {
		return 0
	}
	for i, c := range s.Buckets {
		if c >= n && i < len(Bounds) {
			return Bounds[i]
		}
	}
	return Bounds[len(Bounds)-1]
}

// Merge adds up summaries, of kinds of one layer for example. Its quantiles are as those of Since.
func Merge(all ...Summary) Summary {
	m := Summary{Buckets: make([]uint64, len(Bounds))}
	for _, s := range all {
		m.Layer, m.Kind = s.Layer, s.Kind
		m.Count, m.Sum, m.Max = m.Count+s.Count, m.Sum+s.Sum, max(m.Max, s.Max)
		for i, n := range s.Buckets[:min(len(s.Buckets), len(Bounds))] {
			m.Buckets[i] += n
		}
	}
	m.P50, m.P99 = m.quantile(m.Count-m.Count/2), m.quantile(m.Count-m.Count/100)
	return m
}
