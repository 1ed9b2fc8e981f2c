// Package blockdevtest has what tests of block devices share. Conform is the conformance suite that every blockdev.Device passes. Pinned
// makes a test device whose memory for buffers has a limit.
package blockdevtest

import (
	"bytes"
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev"
)

// Conform tests what every blockdev.Device must do. open returns a new writable device of at least 8 MiB, all zero; Conform closes it.
func Conform(t *testing.T, open func(t *testing.T) blockdev.Device) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, blockdev.Device)
	}{
		{"Info", conformInfo},
		{"Buffers", conformBuffers},
		{"RoundTrip", conformRoundTrip},
		{"Vectors", conformVectors},
		{"Large", conformLarge},
		{"Zeroes", conformZeroes},
		{"BadRequests", conformBadRequests},
		{"ManyRequests", conformMany},
		{"Parallel", conformParallel},
		{"Model", conformModel},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := open(t)
			c.run(t, d)
			require.NoError(t, d.Close())
			require.ErrorIs(t, d.Flush(), blockdev.ErrClosed)
		})
	}
}

func conformInfo(t *testing.T, d blockdev.Device) {
	i := d.Info()
	bs := i.BlockSize
	require.True(t, bs >= 512 && bs&(bs-1) == 0, "block size %d", bs)
	require.GreaterOrEqual(t, i.Size(), blockdev.Bytes(8<<20))
	require.GreaterOrEqual(t, i.MaxTransfer, bs)
	require.GreaterOrEqual(t, i.Queues, 1)
	require.GreaterOrEqual(t, i.Depth, 1)
	require.NotEmpty(t, i.Name)
}

func conformBuffers(t *testing.T, d blockdev.Device) {
	for _, n := range []int{0, 1, 511, 4096, 4097, 64 << 10, 100_000, 1 << 20, 2 << 20, 2<<20 + 1} {
		b, err := d.Alloc(n)
		require.NoError(t, err)
		require.GreaterOrEqual(t, b.Len(), n)
		require.Len(t, b.Bytes(), b.Len())
		copy(b.Bytes(), pattern(b.Len(), uint64(n)))
		b.Release()
	}
	_, err := d.Alloc(-1)
	require.Error(t, err)
}

func conformRoundTrip(t *testing.T, d blockdev.Device) {
	bs := int(d.Info().BlockSize)
	last := d.Info().Size() - blockdev.Bytes(bs)
	buf := alloc(t, d, 4*bs)
	defer buf.Release()
	for k, off := range []blockdev.Bytes{0, blockdev.Bytes(bs), 4 << 20, last} {
		want := pattern(bs, uint64(k))
		copy(buf.Bytes(), want)
		require.NoError(t, d.Write(off, k%2 == 1, buf.Slice(0, bs)))
		clear(buf.Bytes())
		require.NoError(t, d.Read(off, buf.Slice(bs, bs)))
		require.True(t, bytes.Equal(want, buf.Bytes()[bs:2*bs]), "offset %d", off)
		require.True(t, allZero(buf.Bytes()[:bs]) && allZero(buf.Bytes()[2*bs:]), "offset %d: bytes beside the slice changed", off)
	}
	require.NoError(t, d.Flush())
	require.NoError(t, d.Read(last), "no bytes at all")
}

func conformVectors(t *testing.T, d blockdev.Device) {
	bs := int(d.Info().BlockSize)
	a, b := alloc(t, d, 64*bs), alloc(t, d, 64*bs)
	defer a.Release()
	defer b.Release()
	want := pattern(20*bs, 1)
	// Slices of one block scattered over two buffers, some adjacent, some page-aligned and most not.
	var out []blockdev.Slice
	for k := range 20 {
		buf, at := a, k*bs
		if k%3 == 0 {
			buf, at = b, (63-k)*bs
		}
		copy(buf.Bytes()[at:], want[k*bs:(k+1)*bs])
		out = append(out, buf.Slice(at, bs))
	}
	require.NoError(t, d.Write(blockdev.Bytes(3*bs), false, out...))
	in := alloc(t, d, 32*bs)
	defer in.Release()
	require.NoError(t, d.Read(blockdev.Bytes(3*bs), in.Slice(bs, 20*bs)))
	require.True(t, bytes.Equal(want, in.Bytes()[bs:21*bs]))
	require.NoError(t, d.Read(blockdev.Bytes(3*bs), in.Slice(4*bs, bs), in.Slice(0, 0), in.Slice(0, 4*bs), in.Slice(8*bs, 15*bs)))
	got := append(append(append([]byte{}, in.Bytes()[4*bs:5*bs]...), in.Bytes()[:4*bs]...), in.Bytes()[8*bs:23*bs]...)
	require.True(t, bytes.Equal(want, got))
}

func conformLarge(t *testing.T, d blockdev.Device) {
	const n = 3<<20 + 4096
	b := alloc(t, d, n)
	defer b.Release()
	want := pattern(n, 7)
	copy(b.Bytes(), want)
	require.NoError(t, d.Write(4096, true, b.Slice(0, n)))
	clear(b.Bytes())
	require.NoError(t, d.Read(4096, b.Slice(0, n)))
	require.True(t, bytes.Equal(want, b.Bytes()[:n]))
}

func conformZeroes(t *testing.T, d blockdev.Device) {
	bs := d.Info().BlockSize
	n := blockdev.Bytes(3 << 20)
	b := alloc(t, d, int(n))
	defer b.Release()
	want := pattern(int(n), 9)
	copy(b.Bytes(), want)
	require.NoError(t, d.Write(0, false, b.Slice(0, int(n))))
	require.NoError(t, d.WriteZeroes(bs, n-3*bs))
	clear(want[bs : n-2*bs])
	require.NoError(t, d.Read(0, b.Slice(0, int(n))))
	require.True(t, bytes.Equal(want, b.Bytes()[:n]))
	require.NoError(t, d.WriteZeroes(0, 0))
	if !d.Info().Discard {
		require.ErrorIs(t, d.Discard(0, bs), blockdev.ErrUnsupported)
		return
	}
	// What is discarded may read as anything; its neighbours may not change.
	require.NoError(t, d.Discard(n-2*bs, bs))
	require.NoError(t, d.Read(n-bs, b.Slice(0, int(bs))))
	require.True(t, bytes.Equal(want[n-bs:], b.Bytes()[:bs]))
}

func conformBadRequests(t *testing.T, d blockdev.Device) {
	i := d.Info()
	bs, size := i.BlockSize, i.Size()
	b := alloc(t, d, 8192)
	defer b.Release()
	one := b.Slice(0, int(bs))
	for name, r := range map[string]*blockdev.Request{
		"unaligned offset":  {Op: blockdev.OpRead, Off: 1, Bufs: []blockdev.Slice{one}},
		"unaligned length":  {Op: blockdev.OpRead, Bufs: []blockdev.Slice{b.Slice(0, int(bs)-4)}},
		"unaligned slices":  {Op: blockdev.OpWrite, Bufs: []blockdev.Slice{b.Slice(0, 4), b.Slice(4, int(bs)-4)}},
		"odd address":       {Op: blockdev.OpRead, Bufs: []blockdev.Slice{b.Slice(1, int(bs))}},
		"negative offset":   {Op: blockdev.OpWrite, Off: -bs, Bufs: []blockdev.Slice{one}},
		"at the end":        {Op: blockdev.OpRead, Off: size, Bufs: []blockdev.Slice{one}},
		"over the end":      {Op: blockdev.OpWrite, Off: size - bs, Bufs: []blockdev.Slice{one, one}},
		"overflow":          {Op: blockdev.OpWriteZeroes, Off: math.MaxInt64 &^ (bs - 1), Len: bs},
		"negative length":   {Op: blockdev.OpWriteZeroes, Len: -bs},
		"past its buffer":   {Op: blockdev.OpRead, Bufs: []blockdev.Slice{b.Slice(b.Len(), int(bs))}},
		"before its buffer": {Op: blockdev.OpRead, Bufs: []blockdev.Slice{b.Slice(-int(bs), int(bs))}},
		"no buffer":         {Op: blockdev.OpRead, Bufs: []blockdev.Slice{{N: int(bs)}}},
		"no operation":      {},
		"unknown operation": {Op: 77},
	} {
		err := d.Do(r)
		var e *blockdev.Error
		require.ErrorAs(t, err, &e, name)
		require.ErrorIs(t, err, blockdev.ErrInvalid, name)
		require.Equal(t, err, r.Err, name)
	}
}

func conformMany(t *testing.T, d blockdev.Device) {
	bs := d.Info().BlockSize
	const n = 200
	b := alloc(t, d, n*int(bs))
	defer b.Release()
	want := pattern(n*int(bs), 3)
	copy(b.Bytes(), want)
	var reqs []*blockdev.Request
	for k := range blockdev.Bytes(n) {
		reqs = append(reqs, &blockdev.Request{Op: blockdev.OpWrite, Off: (n - k) * 2 * bs, Bufs: []blockdev.Slice{b.Slice(int(k*bs), int(bs))}})
	}
	bad := &blockdev.Request{Op: blockdev.OpRead, Off: d.Info().Size(), Bufs: []blockdev.Slice{b.Slice(0, int(bs))}}
	err := d.Do(append(reqs, bad)...)
	require.ErrorIs(t, err, blockdev.ErrInvalid)
	require.Error(t, bad.Err)
	for _, r := range reqs {
		require.NoError(t, r.Err, "one bad request fails alone")
		r.Op = blockdev.OpRead
	}
	clear(b.Bytes())
	require.NoError(t, d.Do(reqs...))
	require.True(t, bytes.Equal(want, b.Bytes()[:len(want)]))
	require.NoError(t, d.Do())
}

func conformParallel(t *testing.T, d blockdev.Device) {
	const each = 512 << 10
	var wg sync.WaitGroup
	for g := range uint64(8) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(g, 1))
			for k := range uint64(20) {
				n := (1 + rng.IntN(each/4096)) * 4096
				b, err := d.Alloc(n)
				if err != nil {
					t.Errorf("goroutine %d: %v", g, err)
					return
				}
				want := pattern(n, g<<32|k)
				copy(b.Bytes(), want)
				off := blockdev.Bytes(g * each)
				err = d.Write(off, k%5 == 0, b.Slice(0, n))
				clear(b.Bytes())
				if err == nil {
					err = d.Read(off, b.Slice(0, n))
				}
				if err != nil || !bytes.Equal(want, b.Bytes()[:n]) {
					t.Errorf("goroutine %d round %d: err %v, or other bytes than written", g, k, err)
				}
				b.Release()
			}
		})
	}
	wg.Wait()
}

// conformModel does random operations on the device and on a byte slice and compares.
func conformModel(t *testing.T, d blockdev.Device) {
	const size = 2 << 20
	bs := int(d.Info().BlockSize)
	rng := rand.New(rand.NewPCG(2, 2))
	model := make([]byte, size)
	b := alloc(t, d, size)
	defer b.Release()
	for k := range uint64(150) {
		blocks := 1 + rng.IntN(size/bs)
		if k%4 != 0 {
			blocks = 1 + rng.IntN(min(64, size/bs))
		}
		off, n := rng.IntN(size/bs-blocks+1)*bs, blocks*bs
		at := blockdev.Bytes(off)
		switch rng.IntN(4) {
		case 0:
			require.NoError(t, d.WriteZeroes(at, blockdev.Bytes(n)))
			clear(model[off : off+n])
		case 1, 2:
			copy(b.Bytes(), pattern(n, k))
			copy(model[off:], b.Bytes()[:n])
			cut := rng.IntN(blocks+1) * bs
			require.NoError(t, d.Write(at, rng.IntN(2) == 0, b.Slice(0, cut), b.Slice(cut, n-cut)))
		case 3:
			require.NoError(t, d.Read(at, b.Slice(0, n)))
			require.True(t, bytes.Equal(model[off:off+n], b.Bytes()[:n]), "operation %d: read of %d at %d", k, n, off)
		}
	}
	require.NoError(t, d.Read(0, b.Slice(0, size)))
	require.True(t, bytes.Equal(model, b.Bytes()[:size]))
}

func alloc(t *testing.T, d blockdev.Device, n int) blockdev.Buffer {
	t.Helper()
	b, err := d.Alloc(n)
	require.NoError(t, err)
	clear(b.Bytes())
	return b
}

// pattern is n bytes that depend on seed and position.
func pattern(n int, seed uint64) []byte {
	p := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 32), 1}).Read(p)
	return p
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
