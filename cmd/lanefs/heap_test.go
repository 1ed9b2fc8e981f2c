package main

import (
	"math"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHeapLimit: it leaves room for what is pinned; without a limit of the daemon's memory there is none, and there is a least one.
func TestHeapLimit(t *testing.T) {
	const mib = 1 << 20
	for _, v := range []struct{ may, pinned, want int64 }{
		{math.MaxInt64, 1024 * mib, math.MaxInt64},
		{160 * mib, 80 * mib, 60 * mib},
		{9216 * mib, 1024 * mib, 6144 * mib},
		{96 * mib, 64 * mib, 32 * mib},
		{512 * mib, 2048 * mib, 32 * mib},
		{0, 64 * mib, 32 * mib},
	} {
		require.Equal(t, v.want, heapLimit(v.may, v.pinned), "%+v", v)
	}
}

// TestCollectLater: a small heap is collected after so much garbage more; not where memory is short.
func TestCollectLater(t *testing.T) {
	defer func() {
		spareHeap.Store(nil)
		runtime.GC()
	}()
	next := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.NextGC)
	}
	before := next()
	collectLater(spareFrom - 1)
	require.Less(t, next(), before+spareBytes)
	collectLater(spareFrom)
	require.GreaterOrEqual(t, next(), before+spareBytes)
}

// TestHeapLimitOfUser: a daemon keeps the limit that its user has set.
func TestHeapLimitOfUser(t *testing.T) {
	p := newPlace(t)
	p.env = append(p.env, "GOMEMLIMIT=123456789")
	mnt := p.mkdir("mnt")
	p.ok("mount", "--gpu", "host", p.image("image", 64), mnt)
	r, err := p.stat(mnt)
	require.NoError(t, err)
	require.EqualValues(t, 123456789, r.HeapLimit)
	p.ok("umount", mnt)
}
