package pool

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev"
)

// fakeMemory is Go memory with an invented address.
type fakeMemory struct {
	b    []byte
	addr int
	open *int
}

func (m *fakeMemory) Bytes() []byte       { return m.b }
func (m *fakeMemory) Len() int64          { return int64(len(m.b)) }
func (m *fakeMemory) Addresses() []uint64 { return []uint64{uint64(m.addr)} }
func (m *fakeMemory) Close() error        { *m.open--; return nil }

func testPool(limit int64) (p *Pool, open *int) {
	open = new(int)
	next := 1 << 30
	return New(limit, func(n int64) (Memory, error) {
		*open++
		next += int(n) + 4096
		return &fakeMemory{make([]byte, n), next - int(n), open}, nil
	}), open
}

// addr is where a buffer is.
func addr(b blockdev.Buffer) int {
	mine := b.(*Buffer)
	return mine.Memory().(*fakeMemory).addr + mine.Offset()
}

func TestClassOf(t *testing.T) {
	for n, want := range map[int]int{0: 0, 1: 0, 4096: 0, 4097: 1, 8192: 1, 8193: 2, 1 << 20: 8, 2 << 20: 9, 2<<20 + 1: 10} {
		require.Equal(t, want, classOf(n), "%d bytes", n)
	}
}

func TestPoolReusesAndMerges(t *testing.T) {
	p, _ := testPool(64 << 20)
	a, err := p.alloc(4096, blockdev.ForData)
	require.NoError(t, err)
	b, err := p.alloc(100, blockdev.ForData)
	require.NoError(t, err)
	require.Equal(t, addr(a)+4096, addr(b), "neighbours, so that one command serves both")
	require.Equal(t, 4096, b.Len())
	at := addr(b)
	b.Release()
	require.PanicsWithValue(t, "blockdev: buffer released twice", b.Release)
	c, err := p.alloc(4096, blockdev.ForData)
	require.NoError(t, err)
	require.Equal(t, at, addr(c))
	a.Release()
	require.EqualError(t, p.Close(), "1 buffers were not released")

	p, open := testPool(64 << 20)
	for range 1000 {
		b, err := p.alloc(1<<20, blockdev.ForData)
		require.NoError(t, err)
		b.Release()
	}
	require.Equal(t, 1, *open)
	require.NoError(t, p.Close())
	require.Zero(t, *open)
	_, err = p.alloc(1, blockdev.ForData)
	require.ErrorIs(t, err, blockdev.ErrClosed)
}

func TestPoolLimit(t *testing.T) {
	p, open := testPool(40 << 20)
	var held []blockdev.Buffer
	for {
		b, err := p.alloc(1<<20, blockdev.ForData|blockdev.NoWait)
		if err != nil {
			require.ErrorIs(t, err, blockdev.ErrNoMemory)
			require.ErrorContains(t, err, "41943040 of at most 41943040 bytes are pinned: data 41943040 in 40 buffers, single blocks 0 in 0")
			break
		}
		held = append(held, b)
	}
	require.Len(t, held, 40)
	for _, b := range held[:16] {
		b.Release() // a chunk
	}
	big, err := p.alloc(7<<20, blockdev.ForData|blockdev.NoWait)
	require.NoError(t, err, "what fits is still given")
	require.Equal(t, 8<<20, big.Len())
	big.Release()
	for _, b := range held[16:] {
		b.Release()
	}
	_, err = p.alloc(41<<20, blockdev.ForData)
	require.ErrorIs(t, err, blockdev.ErrNoMemory, "what can never be is refused at once")
	// The memory serves other sizes now.
	big, err = p.alloc(30<<20, blockdev.ForData)
	require.NoError(t, err)
	big.Release()
	b, err := p.alloc(4096, blockdev.ForData)
	require.NoError(t, err)
	b.Release()
	require.NoError(t, p.Close())
	require.Zero(t, *open)
}

func TestPoolSourceFails(t *testing.T) {
	boom := errors.New("boom")
	p := New(1<<30, func(int64) (Memory, error) { return nil, boom })
	_, err := p.alloc(1, blockdev.ForData)
	require.ErrorIs(t, err, boom)
	_, err = p.alloc(4<<20, blockdev.ForData)
	require.ErrorIs(t, err, boom, "at once: nothing is out that could come back")
	require.NoError(t, p.Close())
}

// TestPoolOverlap holds random buffers from several goroutines, each filled with its own byte: a buffer handed out twice
// shows.
func TestPoolOverlap(t *testing.T) {
	p, open := testPool(256 << 20)
	var wg sync.WaitGroup
	for g := range uint64(4) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(g, 0))
			type held struct {
				b    blockdev.Buffer
				mark byte
			}
			var have []held
			for range 3000 {
				if len(have) == 0 || len(have) < 40 && rng.IntN(2) == 0 {
					n := 1 << rng.IntN(18)
					if rng.IntN(50) == 0 {
						n = 2<<20 + rng.IntN(4<<20)
					}
					b, err := p.alloc(n, blockdev.ForData)
					if err != nil || b.Len() < n {
						t.Errorf("%d bytes: %v", n, err)
						return
					}
					mark := byte(rng.Uint32())
					b.Bytes()[0], b.Bytes()[b.Len()-1] = mark, mark
					have = append(have, held{b, mark})
					continue
				}
				i := rng.IntN(len(have))
				h := have[i]
				if h.b.Bytes()[0] != h.mark || h.b.Bytes()[h.b.Len()-1] != h.mark {
					t.Errorf("a buffer of %d bytes changed while it was held", h.b.Len())
				}
				h.b.Release()
				have[i] = have[len(have)-1]
				have = have[:len(have)-1]
			}
			for _, h := range have {
				h.b.Release()
			}
		})
	}
	wg.Wait()
	require.NoError(t, p.Close())
	require.Zero(t, *open)
}
