package namespace

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// stretch is memory for the splitter: a buffer that has an address and nothing else.
type stretch struct {
	iova nvme.IOVA
	n    int
}

func (s *stretch) Bytes() []byte                   { return nil }
func (s *stretch) Len() int                        { return s.n }
func (s *stretch) Slice(off, n int) blockdev.Slice { return blockdev.Slice{Buf: s, Off: off, N: n} }
func (s *stretch) Release()                        {}

func where(s blockdev.Slice) nvme.IOVA { return s.Buf.(*stretch).iova + nvme.IOVA(s.Off) }

func TestSplit(t *testing.T) {
	l := limits{blockSize: 512, transfer: 8, zeroes: 16, ranges: 2, perRange: 32, perDSM: 48}
	a, b := &stretch{0x10000, 8192}, &stretch{0x12000, 8192}
	type want struct {
		lba  blockdev.LBA
		n    blockdev.Blocks
		iova nvme.IOVA
	}
	for _, c := range []struct {
		name     string
		req      blockdev.Request
		boundary blockdev.Blocks
		want     []want
	}{
		{"nothing", blockdev.Request{Op: blockdev.OpRead}, 0, nil},
		{"empty slices", blockdev.Request{Op: blockdev.OpRead, Bufs: []blockdev.Slice{a.Slice(0, 0), a.Slice(512, 0)}}, 0, nil},
		{"one block", blockdev.Request{Op: blockdev.OpRead, Off: 1024, Bufs: []blockdev.Slice{a.Slice(0, 512)}}, 0, []want{{2, 1, 0x10000}}},
		{"one command", blockdev.Request{Op: blockdev.OpWrite, Bufs: []blockdev.Slice{a.Slice(4, 4096)}}, 0, []want{{0, 8, 0x10004}}},
		{"too long", blockdev.Request{Op: blockdev.OpWrite, Bufs: []blockdev.Slice{a.Slice(0, 8192)}}, 0, []want{{0, 8, 0x10000}, {8, 8, 0x11000}}},
		{"adjacent slices", blockdev.Request{Op: blockdev.OpRead, Bufs: []blockdev.Slice{a.Slice(0, 512), a.Slice(512, 1024)}}, 0, []want{{0, 3, 0x10000}}},
		{"adjacent buffers", blockdev.Request{Op: blockdev.OpRead, Bufs: []blockdev.Slice{a.Slice(7680, 512), b.Slice(0, 512)}}, 0, []want{{0, 2, 0x11e00}}},
		{"apart", blockdev.Request{Op: blockdev.OpRead, Off: 512, Bufs: []blockdev.Slice{a.Slice(0, 512), a.Slice(1024, 512), a.Slice(1536, 512)}}, 0,
			[]want{{1, 1, 0x10000}, {2, 2, 0x10400}}},
		{"backwards", blockdev.Request{Op: blockdev.OpRead, Bufs: []blockdev.Slice{b.Slice(512, 512), b.Slice(0, 512)}}, 0, []want{{0, 1, 0x12200}, {1, 1, 0x12000}}},
		{"boundary", blockdev.Request{Op: blockdev.OpRead, Off: 3 * 512, Bufs: []blockdev.Slice{a.Slice(0, 8*512)}}, 5, []want{{3, 2, 0x10000}, {5, 5, 0x10400}, {10, 1, 0x10e00}}},
		{"write zeroes", blockdev.Request{Op: blockdev.OpWriteZeroes, Off: 512, Len: 40 * 512}, 5, []want{{1, 16, 0}, {17, 16, 0}, {33, 8, 0}}},
		{"discard", blockdev.Request{Op: blockdev.OpDiscard, Len: 70 * 512}, 0, []want{{0, 32, 0}, {32, 32, 0}, {64, 6, 0}}},
		{"flush", blockdev.Request{Op: blockdev.OpFlush}, 0, []want{{}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l.boundary = c.boundary
			var got []want
			for _, p := range l.split(nil, &c.req, where) {
				require.Same(t, &c.req, p.req)
				require.Equal(t, c.req.Op, p.op)
				got = append(got, want{p.lba, p.n, p.iova})
			}
			require.Equal(t, c.want, got)
		})
	}
}

func TestGather(t *testing.T) {
	l := limits{ranges: 3, perRange: 10, perDSM: 24}
	for _, c := range []struct {
		name   string
		blocks []blockdev.Blocks
		want   []int // ranges in each command
	}{
		{"none", nil, nil},
		{"one", []blockdev.Blocks{10}, []int{1}},
		{"as many as fit", []blockdev.Blocks{1, 1, 1}, []int{3}},
		{"too many ranges", []blockdev.Blocks{1, 1, 1, 1}, []int{3, 1}},
		{"too many blocks", []blockdev.Blocks{10, 10, 10, 4, 1}, []int{2, 3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var ps []piece
			for _, n := range c.blocks {
				ps = append(ps, piece{n: n})
			}
			var got []int
			for _, g := range l.gather(ps) {
				got = append(got, len(g))
			}
			require.Equal(t, c.want, got)
		})
	}
}

// FuzzSplit compares the splitter with the simplest one: block by block, each with the address where its bytes are.
func FuzzSplit(f *testing.F) {
	f.Add(uint8(0), uint16(8), uint16(0), uint16(3), []byte{0, 3, 3, 1, 4, 2})
	f.Add(uint8(3), uint16(1), uint16(5), uint16(0), []byte{9, 9, 18, 1, 19, 200, 0, 0})
	f.Fuzz(func(t *testing.T, shift uint8, transfer, boundary, lba uint16, slices []byte) {
		l := limits{blockSize: 512 << (shift % 4), transfer: blockdev.Blocks(transfer) + 1, boundary: blockdev.Blocks(boundary)}
		memory := &stretch{iova: 0x40000, n: 512 * int(l.blockSize)}
		r := &blockdev.Request{Op: blockdev.OpRead, Off: blockdev.Bytes(lba) * l.blockSize}
		var want []nvme.IOVA // of each block
		for ; len(slices) >= 2; slices = slices[2:] {
			s := memory.Slice(int(slices[0])*int(l.blockSize), int(slices[1])*int(l.blockSize))
			r.Bufs = append(r.Bufs, s)
			for b := range blockdev.Bytes(slices[1]) {
				want = append(want, where(s)+nvme.IOVA(b*l.blockSize))
			}
		}
		pieces := l.split(nil, r, where)
		next := blockdev.LBA(lba)
		for i, p := range pieces {
			require.Equal(t, next, p.lba, "pieces follow one another")
			require.True(t, p.n > 0 && p.n <= l.transfer, "piece of %d blocks", p.n)
			if l.boundary > 0 {
				require.Equal(t, p.lba/blockdev.LBA(l.boundary), (p.lba+blockdev.LBA(p.n)-1)/blockdev.LBA(l.boundary), "crosses a boundary")
			}
			for b := range p.n {
				require.Equal(t, want[0], p.iova+nvme.IOVA(blockdev.Bytes(b)*l.blockSize))
				want = want[1:]
			}
			next += blockdev.LBA(p.n)
			if i+1 < len(pieces) {
				adjacent := pieces[i+1].iova == p.iova+nvme.IOVA(blockdev.Bytes(p.n)*l.blockSize)
				full := p.n == l.transfer || l.boundary > 0 && blockdev.Blocks(next)%l.boundary == 0
				require.True(t, full || !adjacent, "piece %d could be longer", i)
			}
		}
		require.Empty(t, want, "blocks left out")
	})
}
