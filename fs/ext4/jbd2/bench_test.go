package jbd2

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkHandle is an operation that changes 4 blocks which the transaction holds already.
func BenchmarkHandle(b *testing.B) {
	c, err := NewCache(newTestDevice(1<<20, 512), 4096, CacheOptions{})
	require.NoError(b, err)
	j, err := OpenInPlace(c, Config{})
	require.NoError(b, err)
	b.RunParallel(func(pb *testing.PB) {
		for n := Block(0); pb.Next(); n++ {
			h, err := j.Begin(4)
			if err != nil {
				b.Error(err)
				return
			}
			for i := range Block(4) {
				buf, err := c.Get((n*4 + i) % 200)
				if err != nil {
					b.Error(err)
					return
				}
				buf.Lock()
				buf.Data()[0]++
				h.Dirty(buf)
				buf.Unlock()
				buf.Put()
			}
			_ = h.End()
		}
	})
	require.NoError(b, j.Close())
}

// BenchmarkCommit is a commit of 8 blocks through the log.
func BenchmarkCommit(b *testing.B) {
	d := newTestDevice(32<<20, 512)
	f := func(n uint32) (Block, uint32, error) { return Block(1000 + n), 4096 - n, nil }
	mkJournal(d, 4096, 4096, f)
	c, err := NewCache(d, 4096, CacheOptions{})
	require.NoError(b, err)
	l, err := OpenLog(c, 4096, f)
	require.NoError(b, err)
	j, err := l.Start(Config{}, ChecksumV3, true)
	require.NoError(b, err)
	for b.Loop() {
		h, err := j.Begin(8)
		require.NoError(b, err)
		for i := range Block(8) {
			buf, err := c.Get(i)
			require.NoError(b, err)
			buf.Lock()
			buf.Data()[0]++
			h.Dirty(buf)
			buf.Unlock()
			buf.Put()
		}
		require.NoError(b, h.End())
		require.NoError(b, j.Commit())
	}
	require.NoError(b, j.Close())
}
