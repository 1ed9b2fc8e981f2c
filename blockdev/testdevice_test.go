package blockdev_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/blockdevtest"
)

func TestConform(t *testing.T) {
	for name, bs := range map[string]int64{"512": 512, "4096": 4096} {
		t.Run("mem"+name, func(t *testing.T) {
			blockdevtest.Conform(t, func(*testing.T) blockdev.Device { return blockdev.NewMem(8<<20, bs) })
		})
	}
	t.Run("file", func(t *testing.T) {
		blockdevtest.Conform(t, func(t *testing.T) blockdev.Device {
			path := filepath.Join(t.TempDir(), "image")
			require.NoError(t, os.WriteFile(path, nil, 0o600))
			require.NoError(t, os.Truncate(path, 8<<20+100))
			d, err := blockdev.OpenFile(path, 512)
			require.NoError(t, err)
			require.Equal(t, blockdev.Bytes(8<<20), d.Info().Size())
			return d
		})
	})
	t.Run("pinned", func(t *testing.T) {
		blockdevtest.Conform(t, func(t *testing.T) blockdev.Device {
			return blockdevtest.Pinned(t, blockdev.NewMem(8<<20, 512), 32<<20)
		})
	})
	t.Run("nodiscard", func(t *testing.T) {
		blockdevtest.Conform(t, func(*testing.T) blockdev.Device {
			d := blockdev.NewMem(8<<20, 1024)
			d.Modify(func(i *blockdev.Info) { i.Discard = false })
			return d
		})
	})
}

func TestOpenFileErrors(t *testing.T) {
	_, err := blockdev.OpenFile(filepath.Join(t.TempDir(), "absent"), 512)
	require.ErrorIs(t, err, os.ErrNotExist)
	path := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(path, make([]byte, 4096), 0o600))
	for _, bs := range []int64{0, -1, 100, 256, 1 << 20} {
		_, err = blockdev.OpenFile(path, bs)
		require.ErrorContains(t, err, "block size", bs)
	}
}

func TestReadOnly(t *testing.T) {
	d := blockdev.NewMem(1<<20, 512)
	d.Modify(func(i *blockdev.Info) { i.ReadOnly = true })
	b := alloc(t, d, 512)
	require.ErrorIs(t, d.Write(0, false, b.Slice(0, 512)), blockdev.ErrReadOnly)
	require.ErrorIs(t, d.WriteZeroes(0, 512), blockdev.ErrReadOnly)
	require.NoError(t, d.Read(0, b.Slice(0, 512)))
}

func TestBuffersArePoisoned(t *testing.T) {
	d := blockdev.NewMem(1<<20, 512)
	b, err := d.Alloc(100)
	require.NoError(t, err)
	require.Equal(t, byte(0xdb), b.Bytes()[0])
	b.Bytes()[0] = 1
	view := b.Bytes()
	require.Equal(t, 1, d.Outstanding())
	b.Release()
	require.Equal(t, byte(0xdb), view[0])
	require.Zero(t, d.Outstanding())
	require.Panics(t, b.Release)
}

func TestFaults(t *testing.T) {
	d := blockdev.NewMem(1<<20, 512)
	b := alloc(t, d, 4096)
	write := func(off blockdev.Bytes) error { return d.Write(off, false, b.Slice(0, 1024)) }

	remove := d.Inject(blockdev.Fault{Op: blockdev.OpWrite, Skip: 1, Times: 2})
	require.NoError(t, write(0))
	err := write(512)
	require.ErrorIs(t, err, blockdev.ErrFault)
	require.EqualError(t, err, "write of 1024 bytes at 512 (LBA 1): injected fault")
	require.NoError(t, d.Read(0, b.Slice(0, 512)), "reads do not match")
	require.ErrorIs(t, write(0), blockdev.ErrFault)
	require.NoError(t, write(0))
	remove()

	remove = d.Inject(blockdev.Fault{Off: 2048, Len: 512, Err: os.ErrPermission})
	require.NoError(t, write(1024))
	require.ErrorIs(t, write(1536), os.ErrPermission)
	require.ErrorIs(t, d.Read(2048, b.Slice(0, 512)), os.ErrPermission)
	require.NoError(t, write(2560))
	require.NoError(t, d.Flush())
	remove()
	require.NoError(t, write(2048))

	// A torn write leaves its first half.
	require.NoError(t, d.WriteZeroes(0, 4096))
	copy(b.Bytes(), bytes.Repeat([]byte{7}, 4096))
	d.Inject(blockdev.Fault{Op: blockdev.OpWrite, Partial: 600})
	require.Error(t, write(0))
	require.NoError(t, d.Read(0, b.Slice(0, 1024)))
	require.Equal(t, append(bytes.Repeat([]byte{7}, 512), make([]byte, 512)...), b.Bytes()[:1024])
}

// TestWhatStays has faults go on after the first command that they fail.
func TestWhatStays(t *testing.T) {
	d := blockdev.NewMem(1<<20, 512)
	b := alloc(t, d, 4096)
	var hits []blockdev.Event
	remove := d.Inject(blockdev.Fault{Skip: 1, Times: 1, Hit: func(e blockdev.Event) { hits = append(hits, e) },
		Fail: func(r *blockdev.Request) error { return fmt.Errorf("no %v", r.Op) },
		Then: func(first blockdev.Event, r *blockdev.Request) bool { return r.Op == first.Op && first.Touches(r) }})
	require.NoError(t, d.Write(0, false, b.Slice(0, 1024)))
	require.ErrorContains(t, d.Write(512, false, b.Slice(0, 1024)), "no write")
	require.ErrorContains(t, d.Write(1024, false, b.Slice(0, 4096)), "no write")
	require.NoError(t, d.Write(0, false, b.Slice(0, 512)), "it touches nothing that is bad")
	require.NoError(t, d.Read(512, b.Slice(0, 512)), "only writes are bad")
	require.NoError(t, d.Flush())
	require.Equal(t, []blockdev.Event{{Op: blockdev.OpWrite, Off: 512, Len: 1024}, {Op: blockdev.OpWrite, Off: 1024, Len: 4096}}, hits)
	remove()
	require.NoError(t, d.Write(512, false, b.Slice(0, 1024)))
}

// TestPartsOfACommand has commands fail of which some blocks are carried out.
func TestPartsOfACommand(t *testing.T) {
	d := blockdev.NewMem(1<<20, 512)
	b := alloc(t, d, 4096)
	odd := func(block int) bool { return block%2 == 1 }
	content := func() string {
		require.NoError(t, d.Read(0, b.Slice(0, 4096)))
		var s []byte
		for k := 0; k < 4096; k += 512 {
			require.Equal(t, bytes.Repeat(b.Bytes()[k:k+1], 512), b.Bytes()[k:k+512])
			s = append(s, '0'+b.Bytes()[k])
		}
		return string(s)
	}
	fill := func(v byte) { copy(b.Bytes(), bytes.Repeat([]byte{v}, 4096)) }
	fill(1)
	require.NoError(t, d.Write(0, false, b.Slice(0, 4096)))
	fill(2)
	remove := d.Inject(blockdev.Fault{Op: blockdev.OpWrite, Done: odd})
	require.ErrorIs(t, d.Write(0, false, b.Slice(0, 1536), b.Slice(1536, 2560)), blockdev.ErrFault)
	remove()
	require.Equal(t, "12121212", content())
	remove = d.Inject(blockdev.Fault{Op: blockdev.OpDiscard, Done: odd})
	require.ErrorIs(t, d.Discard(512, 2048), blockdev.ErrFault)
	remove()
	require.Equal(t, "12020212", content())
	fill(3)
	remove = d.Inject(blockdev.Fault{Op: blockdev.OpRead, Done: odd})
	require.ErrorIs(t, d.Read(0, b.Slice(0, 2048)), blockdev.ErrFault)
	require.Equal(t, []byte{3, 2, 3, 2}, []byte{b.Bytes()[0], b.Bytes()[512], b.Bytes()[1024], b.Bytes()[1536]})
	remove()

	// A flush that fails, and one that fails although it has flushed.
	d.CacheWrites()
	for _, works := range []bool{false, true} {
		fill(4)
		require.NoError(t, d.Write(0, false, b.Slice(0, 512)))
		remove = d.Inject(blockdev.Fault{Op: blockdev.OpFlush, Done: func(int) bool { return works }})
		require.ErrorIs(t, d.Flush(), blockdev.ErrFault)
		remove()
		require.NoError(t, d.Cut(nil))
		require.Equal(t, works, content()[0] == '4')
	}
}

// TestLostByAFlush has a flush lose what was written before it.
func TestLostByAFlush(t *testing.T) {
	d := blockdev.NewMem(1<<20, 512)
	d.CacheWrites()
	b := alloc(t, d, 4096)
	write := func(off blockdev.Bytes, v byte, fua bool) {
		copy(b.Bytes(), bytes.Repeat([]byte{v}, 512))
		require.NoError(t, d.Write(off, fua, b.Slice(0, 512)))
	}
	content := func() []byte {
		require.NoError(t, d.Read(0, b.Slice(0, 2048)))
		return []byte{b.Bytes()[0], b.Bytes()[512], b.Bytes()[1024], b.Bytes()[1536]}
	}
	for k := range blockdev.Bytes(4) {
		write(512*k, 1, true)
		write(512*k, 2, false)
		write(512*k, 3, false)
	}
	remove := d.Inject(blockdev.Fault{Op: blockdev.OpFlush, Lose: true})
	require.ErrorIs(t, d.Flush(), blockdev.ErrFault)
	remove()
	require.Equal(t, []byte{3, 3, 3, 3}, content(), "reads see it")
	write(512, 4, false) // durable with the next flush
	write(1024, 4, true)
	require.NoError(t, d.Flush())
	write(1536, 5, false) // lost again: what the medium holds is still the oldest
	require.NoError(t, d.Cut(nil))
	require.Equal(t, []byte{1, 4, 4, 1}, content())
}

func TestShortage(t *testing.T) {
	d := blockdev.NewMem(1<<20, 512)
	hits, calls := 0, 0
	remove := d.Shorten(blockdev.Shortage{Skip: 1, Times: 2, Hit: func(int) { hits++ }, Count: &calls})
	for _, want := range []error{nil, blockdev.ErrNoMemory, blockdev.ErrNoMemory, nil} {
		b, err := d.Alloc(10)
		require.ErrorIs(t, err, want)
		if err == nil {
			b.Release()
		}
	}
	remove()
	require.Equal(t, []int{2, 4}, []int{hits, calls})
	alloc(t, d, 10)
	require.Equal(t, 4, calls)
}

func TestObserve(t *testing.T) {
	d := blockdev.NewMem(1<<20, 512)
	b := alloc(t, d, 4096)
	var seen []blockdev.Event
	d.Observe(func(e blockdev.Event) { seen = append(seen, e) })
	require.NoError(t, d.Write(512, true, b.Slice(0, 512), b.Slice(1024, 512)))
	require.Error(t, d.Write(3, false, b.Slice(0, 512)))
	require.NoError(t, d.Flush())
	require.Equal(t, []blockdev.Event{{Op: blockdev.OpWrite, Off: 512, Len: 1024, FUA: true}, {Op: blockdev.OpFlush}}, seen)
}

func TestCut(t *testing.T) {
	d := blockdev.NewMem(1<<20, 512)
	d.CacheWrites()
	b := alloc(t, d, 8192)
	write := func(off blockdev.Bytes, v byte, n int, fua bool) {
		copy(b.Bytes(), bytes.Repeat([]byte{v}, n))
		require.NoError(t, d.Write(off, fua, b.Slice(0, n)))
	}
	at := func(off blockdev.Bytes) byte {
		require.NoError(t, d.Read(off, b.Slice(0, 512)))
		return b.Bytes()[0]
	}
	write(0, 1, 2048, false)
	require.NoError(t, d.Flush())
	write(0, 2, 2048, false)
	write(512, 3, 512, true)
	require.NoError(t, d.WriteZeroes(1024, 512))
	require.Equal(t, byte(0), at(1024))
	require.NoError(t, d.Cut(nil))
	require.Equal(t, []byte{1, 3, 1, 1}, []byte{at(0), at(512), at(1024), at(1536)})

	// With a rng every block is one of the values it had since the flush, and over many cuts each of them appears.
	rng := rand.New(rand.NewPCG(1, 1))
	seen := map[byte]bool{}
	for range 100 {
		write(0, 1, 512, true)
		write(0, 2, 512, false)
		write(0, 3, 512, false)
		require.NoError(t, d.Cut(rng))
		seen[at(0)] = true
	}
	require.Equal(t, map[byte]bool{1: true, 2: true, 3: true}, seen)
}

func alloc(t *testing.T, d blockdev.Device, n int) blockdev.Buffer {
	t.Helper()
	b, err := d.Alloc(n)
	require.NoError(t, err)
	clear(b.Bytes())
	return b
}
