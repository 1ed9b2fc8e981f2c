package ext4_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// TestFileModel changes files at random in every way, against a copy in memory. Then e2fsck and the kernel look at them.
func TestFileModel(t *testing.T) {
	for _, l := range []struct {
		name   string
		args   []string
		sizes  []int // a file of up to each size
		mapped bool
	}{
		{"4k", nil, []int{20_000, 3_000_000}, false},
		{"1k", []string{"-b", "1024"}, []int{5_000, 1_500_000}, false},
		{"inline data", []string{"-O", "inline_data"}, []int{100, 200, 20_000}, false},
		{"inline data in 1k", []string{"-O", "inline_data,^extent,^64bit", "-I", "1024", "-N", "1000"}, []int{500, 2000, 5000}, true},
		{"block map", []string{"-t", "ext3"}, []int{20_000, 3_000_000}, true},
		{"block map 1k", []string{"-t", "ext2", "-b", "1024"}, []int{5_000, 1_500_000}, true},
	} {
		t.Run(l.name, func(t *testing.T) {
			img := disktest.Make(t, "96M", l.args...)
			v, done := open(t, img, ext4.Options{})
			root, err := v.Root()
			require.NoError(t, err)
			want := map[string][]byte{}
			for k, size := range l.sizes {
				name := fmt.Sprintf("model%d", k)
				f, err := root.Create(name, unix.S_IFREG|0o600, 0, 0, 0, 0)
				require.NoError(t, err)
				m := &fileModel{t: t, f: f, rng: rand.New(rand.NewPCG(7, uint64(k))), max: size, bs: v.BlockSize(), mapped: l.mapped}
				for range 400 {
					m.step()
				}
				want[name] = m.b
				m.check()
				f.Put()
			}
			root.Put()
			done()
			disktest.Fsck(t, img)
			disktest.Mount(t, img, "ro", func(dir string) {
				for name, b := range want {
					got, err := os.ReadFile(filepath.Join(dir, name))
					require.NoError(t, err)
					require.True(t, string(b) == string(got), "the kernel reads %s differently", name)
				}
			})
		})
	}
}

// fileModel is a file and what it should hold.
type fileModel struct {
	t      *testing.T
	f      *ext4.Inode
	b      []byte
	rng    *rand.Rand
	max    int
	bs     int
	mapped bool // has a block map
	last   string
}

// check compares the whole file.
func (m *fileModel) check() {
	m.t.Helper()
	require.EqualValues(m.t, len(m.b), m.f.Attr().Size, m.last)
	for off := 0; off < len(m.b); off += 1 << 20 {
		d, err := m.f.Read(int64(off), 1<<20)
		require.NoError(m.t, err, m.last)
		want := m.b[off:min(off+1<<20, len(m.b))]
		require.Len(m.t, d.Bytes(), len(want), m.last)
		for k := range want {
			if want[k] != d.Bytes()[k] {
				m.t.Fatalf("after %s: byte %d is %#x, should be %#x", m.last, off+k, d.Bytes()[k], want[k])
			}
		}
		d.Release()
	}
}

// place is a random range, its ends at block boundaries now and then.
func (m *fileModel) place() (off, n int) {
	off, n = m.rng.IntN(m.max), 1+m.rng.IntN(max(m.max/10, 1))
	if m.rng.IntN(3) == 0 {
		off, n = off/m.bs*m.bs, (n+m.bs-1)/m.bs*m.bs
	}
	return off, min(n, m.max-off)
}

func (m *fileModel) grow(size int) {
	if size > len(m.b) {
		m.b = append(m.b, make([]byte, size-len(m.b))...)
	}
}

func (m *fileModel) step() {
	off, n := m.place()
	if n == 0 {
		return
	}
	falloc := func(mode uint32, unmapped bool) bool {
		err := m.f.Fallocate(mode, int64(off), int64(n))
		if m.mapped && unmapped {
			require.ErrorIs(m.t, err, ext4.ErrNotSup, m.last)
			return false
		}
		require.NoError(m.t, err, m.last)
		return true
	}
	say := func(what string) { m.last = fmt.Sprintf("%s [%d, %d) of %d", what, off, off+n, len(m.b)) }
	switch op := m.rng.IntN(10); op {
	case 0, 1, 2, 3:
		say("write")
		b := random(m.rng, n)
		done, err := m.f.Write(int64(off), b)
		require.NoError(m.t, err, m.last)
		require.Equal(m.t, n, done)
		m.grow(off + n)
		copy(m.b[off:], b)
	case 4, 5:
		say("truncate to the start of")
		size := int64(off)
		_, err := m.f.SetAttr(ext4.SetAttr{Size: &size})
		require.NoError(m.t, err, m.last)
		m.grow(off)
		m.b = m.b[:off:off]
	case 6:
		say("punch")
		if falloc(ext4.FallocPunchHole|ext4.FallocKeepSize, false) && off < len(m.b) {
			clear(m.b[off:min(off+n, len(m.b))])
		}
	case 7:
		say("zero")
		if falloc(ext4.FallocZeroRange, true) {
			m.grow(off + n)
			clear(m.b[off : off+n])
		}
	case 8:
		say("allocate")
		if falloc(0, true) {
			m.grow(off + n)
		}
	case 9:
		say("allocate past the end")
		falloc(ext4.FallocKeepSize, true)
	}
	if m.max < 100_000 || m.rng.IntN(20) == 0 {
		m.check()
	}
}
