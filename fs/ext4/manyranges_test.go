package ext4_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// TestManyRanges reads many ranges of a file with many extents and holes in one call, in any order: each finds its own, in files with extents and with
// block maps.
func TestManyRanges(t *testing.T) {
	for name, flags := range map[string][]string{"extents": nil, "block map": {"-O", "^extent,^64bit"}} {
		t.Run(name, func(t *testing.T) {
			v, done := open(t, disktest.Make(t, "32M", append([]string{"-b", "1024"}, flags...)...), ext4.Options{})
			defer done()
			root, err := v.Root()
			require.NoError(t, err)
			defer root.Put()
			f := create(t, root, "f")
			defer f.Put()
			rng := rand.New(rand.NewPCG(5, 6))
			want := make([]byte, 1<<20)
			for at := 0; at < len(want)-8<<10; at += 1024 * (1 + rng.IntN(3)) {
				n := 1 + rng.IntN(2000)
				for i := range n {
					want[at+i] = byte(rng.Uint32())
				}
				_, err := f.Write(int64(at), want[at:at+n])
				require.NoError(t, err)
				at += n
			}
			size := int64(len(want))
			_, err = f.SetAttr(ext4.SetAttr{Size: &size})
			require.NoError(t, err)
			for round := range 20 {
				m := &together{target: target{b: make([]byte, 2<<20)}}
				var mem ext4.Target = m
				one := round%5 == 3
				if one {
					mem = &alone{m.target}
				}
				if round%5 == 4 {
					m.err = errors.New("the GPU is lost")
				}
				var ts []ext4.Transfer
				at := 0
				for range 300 {
					x := ext4.Transfer{Off: rng.Int64N(size), N: 1 + rng.IntN(5000), Mem: mem, At: at}
					x.At += int(x.Off-int64(at)+1) & 3 // so that no part of it can go by DMA
					ts, at = append(ts, x), x.At+x.N
				}
				f.ReadInto(ts)
				require.Equal(t, one, m.calls == 0)
				for _, x := range ts {
					if m.err != nil {
						require.ErrorIs(t, x.Err, m.err)
						require.Zero(t, x.Done)
						continue
					}
					require.NoError(t, x.Err)
					end := min(x.Off+int64(x.N), size)
					require.EqualValues(t, end-x.Off, x.Done)
					require.True(t, bytes.Equal(want[x.Off:end], m.b[x.At:][:x.Done]), "%d bytes at %d", x.N, x.Off)
				}
			}
		})
	}
}

// together is a target that takes pieces together, and only so.
type together struct {
	target
	calls int
	err   error
}

func (m *together) Put(int, []byte) error { panic("one piece alone") }

func (m *together) PutsAll() bool { return true }

// alone is one that takes them one by one, whatever it has for more.
type alone struct{ target }

func (*alone) PutsAll() bool { return false }

func (*alone) PutAll([]int64, [][]byte) error { panic("together") }

func (m *together) PutAll(at []int64, from [][]byte) error {
	m.calls++
	for i, p := range from {
		if m.err == nil {
			copy(m.b[at[i]:], p)
		}
	}
	return m.err
}
