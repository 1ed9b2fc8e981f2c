package jbd2

import (
	"encoding/binary"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func numbered(t *testing.T, blockSize, blocks int) *testDevice {
	t.Helper()
	d := newTestDevice(int64(blockSize*blocks), 512)
	for i := range blocks {
		binary.LittleEndian.PutUint64(d.image[i*blockSize:], uint64(i))
	}
	return d
}

func number(b *Buffer) uint64 { return binary.LittleEndian.Uint64(b.Data()) }

func TestCacheReads(t *testing.T) {
	for bs := MinBlockSize; bs <= MaxBlockSize; bs *= 2 {
		t.Run(fmt.Sprint(bs), func(t *testing.T) {
			d := numbered(t, bs, 300)
			c, err := NewCache(d, bs, CacheOptions{Limit: int64(bs) * 64})
			require.NoError(t, err)
			require.EqualValues(t, 300, c.Blocks())
			for range 2 {
				for i := range Block(300) {
					b, err := c.Get(i)
					require.NoError(t, err)
					require.Len(t, b.Data(), bs)
					require.EqualValues(t, i, number(b))
					require.False(t, b.Verified())
					b.Put()
				}
			}
			require.LessOrEqual(t, c.Stats().Resident, int64(bs*64))
			var many []Block
			for i := range Block(200) {
				many = append(many, i*7%300)
			}
			bufs, err := c.GetMany(many...)
			require.NoError(t, err)
			for i, b := range bufs {
				require.EqualValues(t, many[i], number(b))
				b.Put()
			}
			b, err := c.Get(77)
			require.NoError(t, err)
			require.EqualValues(t, 77, number(b))
			b.Put()
			_, err = c.Get(300)
			require.ErrorContains(t, err, "block 300 is beyond")
			require.NoError(t, c.Close())
		})
	}
}

func TestCacheKeepsVerified(t *testing.T) {
	d := numbered(t, 4096, 10)
	c, err := NewCache(d, 4096, CacheOptions{})
	require.NoError(t, err)
	b, err := c.Get(3)
	require.NoError(t, err)
	b.SetVerified()
	b.Put()
	b, err = c.Get(3)
	require.NoError(t, err)
	require.True(t, b.Verified())
	b.Put()
	require.EqualValues(t, 4096, c.Stats().MetadataRead, "one read serves both")
	c.Invalidate()
	b, err = c.Get(3)
	require.NoError(t, err)
	require.False(t, b.Verified())
	require.Error(t, c.Close(), "a buffer is still held")
	b.Put()
}

func TestCacheReadErrorIsNotKept(t *testing.T) {
	d := numbered(t, 4096, 10)
	c, err := NewCache(d, 4096, CacheOptions{})
	require.NoError(t, err)
	d.dead = true
	_, err = c.Get(3)
	require.ErrorIs(t, err, errInjected)
	require.ErrorContains(t, err, "metadata block 3")
	_, err = c.GetMany(1, 2, 3)
	require.ErrorIs(t, err, errInjected)
	d.dead = false
	b, err := c.Get(3)
	require.NoError(t, err)
	require.EqualValues(t, 3, number(b))
	b.Put()
	require.NoError(t, c.Close())
}

func TestCacheConcurrent(t *testing.T) {
	d := numbered(t, 1024, 4096)
	c, err := NewCache(d, 1024, CacheOptions{Limit: 64 << 10})
	require.NoError(t, err)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range 2000 {
				n := Block((i*37 + g*i) % 4096)
				if i%16 == 0 {
					bufs, err := c.GetMany(n, n^1, n^2)
					if err != nil {
						t.Errorf("blocks beside %d: %v", n, err)
						return
					}
					for _, b := range bufs {
						b.Put()
					}
				}
				b, err := c.Get(n)
				if err != nil || number(b) != uint64(n) {
					t.Errorf("block %d: %v", n, err)
					return
				}
				b.Put()
			}
		}()
	}
	wg.Wait()
	require.NoError(t, c.Close())
}

func TestCacheRefusesSmallBlocksOnLargeLBAs(t *testing.T) {
	_, err := NewCache(newTestDevice(1<<20, 4096), 1024, CacheOptions{})
	require.ErrorContains(t, err, "smaller than the device's of 4096")
	_, err = NewCache(newTestDevice(1<<20, 512), 1000, CacheOptions{})
	require.ErrorContains(t, err, "block size 1000")
}
