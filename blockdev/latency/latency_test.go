package latency

import (
	"bytes"
	"io"
	"math/rand/v2"
	"runtime/trace"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Each bucket begins where the one before ends, and has the durations that belong to it.
func TestBuckets(t *testing.T) {
	for i := range buckets - 1 {
		end := uint64(bound(i))
		require.Equal(t, i, bucket(end-1), "the last of bucket %d", i)
		require.Equal(t, i+1, bucket(end), "the first after bucket %d", i)
	}
	require.Equal(t, buckets-1, bucket(1<<63))
	require.Equal(t, 0, bucket(0))
}

// Quantiles of random durations are at most an eighth too long.
func TestQuantiles(t *testing.T) {
	l := NewLayer("test", "first", "second")
	r := rand.New(rand.NewPCG(1, 2))
	var all []time.Duration
	var sum time.Duration
	for range 10000 {
		d := time.Duration(1) << (7 + r.IntN(25))
		d += time.Duration(r.Int64N(int64(d)))
		all = append(all, d)
		sum += d
		l.Add(1, d)
	}
	slices.Sort(all)
	s := l.Summaries()
	require.Len(t, s, 1, "only what was counted")
	require.Equal(t, "second", s[0].Kind)
	require.EqualValues(t, len(all), s[0].Count)
	require.Equal(t, sum, s[0].Sum)
	require.Equal(t, all[len(all)-1], s[0].Max)
	for _, q := range []struct {
		got  time.Duration
		want time.Duration
	}{{s[0].P50, all[len(all)/2-1]}, {s[0].P99, all[len(all)*99/100-1]}} {
		require.GreaterOrEqual(t, q.got, q.want)
		require.LessOrEqual(t, q.got, q.want+q.want/8+1)
	}
	for i, b := range Bounds {
		n, _ := slices.BinarySearch(all, b)
		require.EqualValues(t, n, s[0].Buckets[i], "shorter than %v", b)
	}
}

// What happens at once from many goroutines is counted whole.
func TestConcurrent(t *testing.T) {
	l := NewLayer("test", "one")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				l.Start(0).End()
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 8000, l.Summaries()[0].Count)
}

func TestAllocatesNothing(t *testing.T) {
	l := NewLayer("test", "one")
	require.Zero(t, testing.AllocsPerRun(100, func() { l.Start(0).End() }))
	var none *Layer
	none.Start(0).End()
	none.Add(0, time.Second)
	require.Nil(t, none.Summaries())
}

// While a trace is recorded, operations are its regions.
func TestTraced(t *testing.T) {
	if trace.IsEnabled() {
		t.Skip("the tests are traced already")
	}
	var b bytes.Buffer
	require.NoError(t, trace.Start(&b))
	NewLayer("layer", "kind").Start(0).End()
	trace.Stop()
	require.Contains(t, b.String(), "layer kind")
}

func BenchmarkOp(b *testing.B) {
	l := NewLayer("test", "one")
	for b.Loop() {
		l.Start(0).End()
	}
}

// What came between two summaries, and the sum of several.
func TestSinceAndMerge(t *testing.T) {
	l := NewLayer("test", "a", "b")
	for range 100 {
		l.Add(0, time.Millisecond)
	}
	before := l.Summaries()[0]
	for range 99 {
		l.Add(0, 3*time.Microsecond)
	}
	l.Add(0, time.Second)
	l.Add(1, time.Minute)
	s := l.Summaries()
	d := s[0].Since(before)
	require.EqualValues(t, 100, d.Count)
	require.Equal(t, 4096*time.Nanosecond, d.P50)
	require.Equal(t, 4096*time.Nanosecond, d.P99)
	require.Equal(t, 99*3*time.Microsecond+time.Second, d.Sum)
	require.Zero(t, s[0].Since(s[0]).P50)
	m := Merge(s...)
	require.EqualValues(t, 201, m.Count)
	require.Equal(t, time.Minute, m.Max)
	require.Equal(t, time.Duration(1<<20), m.P50)
}

// TestWatch: what ends a recording began within it. An operation that an earlier trace saw begin does not.
func TestWatch(t *testing.T) {
	if trace.IsEnabled() {
		t.Skip("the tests are traced already")
	}
	l := NewLayer("fuse", "read")
	require.NoError(t, trace.Start(io.Discard))
	defer trace.Stop()
	before := l.Start(0)
	time.Sleep(time.Millisecond)
	met, stop := l.Watch(time.Nanosecond)
	defer stop()
	before.End()
	require.Empty(t, met)
	within := l.Start(0)
	time.Sleep(time.Millisecond)
	within.End()
	require.Len(t, met, 1)
}

// TestInclude: what another layer has timed for several is in the summaries of each, whether it has timed any itself or not.
func TestInclude(t *testing.T) {
	lone, both, none := NewLayer("lone", "read", "write"), NewLayer("a", "read", "write"), NewLayer("b", "read", "write")
	both.Include(lone)
	none.Include(lone)
	both.Add(0, 2*time.Millisecond)
	lone.Add(0, time.Millisecond)
	lone.Add(0, time.Second)
	one, two := both.Summaries(), none.Summaries()
	require.Len(t, one, 1)
	require.Len(t, two, 1)
	require.Equal(t, []any{"a", "read", uint64(3), 1003 * time.Millisecond, time.Second}, []any{one[0].Layer, one[0].Kind, one[0].Count, one[0].Sum, one[0].Max})
	require.Equal(t, []any{"b", uint64(2), 1001 * time.Millisecond, time.Second}, []any{two[0].Layer, two[0].Count, two[0].Sum, two[0].Max})
	require.Equal(t, uint64(3), one[0].Buckets[len(Bounds)-1])
}
