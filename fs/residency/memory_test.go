package residency

import (
	"bytes"
	"errors"
	"math"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/hugepage"
)

// fake is memory of which the CPU sees host, and whose kernels see what keeper was told of.
type fake struct {
	gpu.Memory
	host   []byte
	size   int64
	keeper gpu.Keeper
	closed bool
}

func (f *fake) Host() []byte     { return f.host }
func (f *fake) Size() int64      { return f.size }
func (f *fake) Reach() gpu.Reach { return gpu.Reach{Keeper: f.keeper} }
func (f *fake) Close() error     { f.closed = true; return nil }

// keeper counts what it is told.
type keeper struct {
	gpu.Keeper
	arrived int
	err     error
}

func (k *keeper) Arrived() error { k.arrived++; return k.err }

// mover is a Mover whose device memory is bytes.
type mover struct {
	bytes  []byte
	writes int
	err    error
	stuck  error
}

func (m *mover) Read(dst []byte, _ gpu.Memory, off int64) error {
	copy(dst, m.bytes[off:])
	return m.err
}

func (m *mover) Write(_ gpu.Memory, off int64, src []byte) error {
	m.writes++
	copy(m.bytes[off:off+int64(len(src))], src)
	return m.err
}

func (m *mover) Stuck() error { return m.stuck }

// together is a mover that is faster so.
type together struct{ *mover }

func (m together) WriteAll(g gpu.Memory, at []int64, from [][]byte) error {
	for i := range at {
		copy(m.bytes[at[i]:], from[i])
	}
	m.writes++
	return m.err
}

// TestMemory: bytes are put, got and cleared within memory only, whether the CPU sees it or a mover does it.
func TestMemory(t *testing.T) {
	const size = 3<<20 + 100
	for name, byCPU := range map[string]bool{"by the CPU": true, "by a mover": false} {
		t.Run(name, func(t *testing.T) {
			content := bytes.Repeat([]byte{0xee}, size)
			want := bytes.Clone(content)
			v := &mover{bytes: content}
			m := &Memory{mem: &fake{size: size}, mover: together{v}}
			if byCPU {
				k := &keeper{}
				m.mem, m.host = &fake{host: content, size: size, keeper: k}, content
			}
			require.True(t, m.PutsAll())
			require.Equal(t, byCPU, m.Addressable())
			require.NoError(t, m.Put(5, []byte("abc")))
			copy(want[5:], "abc")
			require.NoError(t, m.Zero(10, 2<<20+3))
			clear(want[10 : 10+2<<20+3])
			require.NoError(t, m.PutAll([]int64{size - 2, 20, 30}, [][]byte{[]byte("zz"), []byte("first"), []byte("second")}))
			copy(want[size-2:], "zz")
			copy(want[20:], "first")
			copy(want[30:], "second")
			require.True(t, bytes.Equal(want, content))
			got := make([]byte, 4)
			require.NoError(t, m.Get(4, got))
			require.Equal(t, want[4:8], got)

			for _, r := range [][2]int{{-1, 1}, {size, 1}, {size - 1, 2}, {0, size + 1}, {math.MaxInt, 1}} {
				b := make([]byte, r[1])
				require.ErrorIs(t, m.Put(r[0], b), syscall.EINVAL, r)
				require.ErrorIs(t, m.Get(r[0], b), syscall.EINVAL, r)
				require.ErrorIs(t, m.Zero(r[0], r[1]), syscall.EINVAL, r)
				require.ErrorIs(t, m.PutAll([]int64{0, int64(r[0])}, [][]byte{[]byte("bad"), b}), syscall.EINVAL, r)
			}
			require.ErrorIs(t, m.Zero(0, -1), syscall.EINVAL)
			require.True(t, bytes.Equal(want, content), "what is refused changes nothing")
			v.err = errors.New("the copy failed")
			if k, ok := m.mem.Reach().Keeper.(*keeper); ok {
				require.Equal(t, 3, k.arrived, "kernels see what was put")
				k.err = v.err
			}
			require.ErrorIs(t, m.Put(0, got), v.err)
			require.ErrorIs(t, m.Zero(0, 1), v.err)
			require.ErrorIs(t, m.PutAll([]int64{0}, [][]byte{got}), v.err)
			if !byCPU {
				require.ErrorIs(t, m.Get(0, got), v.err)
			}
			v.writes = 0
			for _, at := range []int{0, 7, size} {
				require.NoError(t, m.Put(at, nil), "nothing needs no copy")
				require.NoError(t, m.Get(at, nil))
				require.NoError(t, m.Zero(at, 0))
			}
			require.Zero(t, v.writes)
		})
	}
	require.False(t, (&Memory{mem: &fake{}, host: []byte{0}}).PutsAll(), "the CPU's own gains nothing")
	require.False(t, (&Memory{mem: &fake{}, mover: &mover{}}).PutsAll())
}

// TestStuckCopy: memory that a copy may yet use is not freed.
func TestStuckCopy(t *testing.T) {
	f, v := &fake{size: 10}, &mover{stuck: errors.New("a copy did not end")}
	m := &Memory{mem: f, mover: v}
	require.ErrorIs(t, m.close(), v.stuck)
	require.False(t, f.closed)
	v.stuck = nil
	require.NoError(t, m.close())
	require.True(t, f.closed)
	v.stuck, f.closed = errors.New("a copy did not end"), false
	require.NoError(t, (&Memory{mem: f, mover: v, host: []byte{0}}).close(), "the CPU's is no copy's")
	require.True(t, f.closed)
}

// TestPagesGone: pages that a program has taken away from its memory are an error of that transfer.
func TestPagesGone(t *testing.T) {
	fd, err := unix.MemfdCreate("gone", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	defer unix.Close(fd)
	const size = 8192
	require.NoError(t, unix.Ftruncate(fd, size))
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	defer unix.Munmap(b)
	require.NoError(t, unix.Ftruncate(fd, 4096))
	k := &keeper{}
	m := &Memory{mem: &fake{host: b, size: size, keeper: k}, host: b}
	require.NoError(t, m.Put(0, []byte("there")))
	require.ErrorIs(t, m.Put(4096, []byte("not there")), syscall.EFAULT)
	require.ErrorIs(t, m.Zero(0, size), syscall.EFAULT)
	require.ErrorIs(t, m.PutAll([]int64{0, 5000}, [][]byte{[]byte("a"), []byte("b")}), syscall.EFAULT)
	require.ErrorIs(t, m.Get(4096, make([]byte, 1)), syscall.EFAULT)
	require.Equal(t, 1, k.arrived)
}

// TestPopulated: memory's pages are there before a load fills them, all at once.
func TestPopulated(t *testing.T) {
	huge := hugepage.Size()
	if huge == 0 {
		t.Skip("SKIPPED: no huge pages")
	}
	p := newPool(t, 4)
	var st unix.Stat_t
	h, err := p.Alloc(2*huge, func(m *Memory) error {
		e, err := m.mem.Export(gpu.ExportMemFD)
		if err != nil {
			return err
		}
		defer unix.Close(e.FD)
		return unix.Fstat(e.FD, &st)
	}, nil)
	require.NoError(t, err)
	h.Release()
	require.NotZero(t, st.Blocks)
}
