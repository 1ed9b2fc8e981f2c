package lanefs_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/sharetest"
	lanefs "github.com/lanefs/lanefs/sdk/go"
)

const (
	mib     = 1 << 20
	granule = 2 * mib
)

func random(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = r.Read(b)
	return b
}

func connect(t *testing.T, f *os.File) *lanefs.Session {
	t.Helper()
	s, err := lanefs.Connect(f)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

func TestMap(t *testing.T) {
	m := sharetest.New(t, 256*mib, 64*mib)
	data := random(1, 9*mib+1234)
	f := m.Write("file", data)
	s := connect(t, f)
	require.Equal(t, "host", s.Facts().Runtime)
	require.EqualValues(t, granule, s.Facts().Granule)
	for _, r := range [][2]int64{{0, 0}, {0, 1}, {1, 4095}, {4096, 8192}, {5000, 3 * mib}, {9 * mib, 0}, {int64(len(data)) - 1, 1}, {2*mib - 1, 2}} {
		b, err := s.Map(f, r[0], r[1])
		require.NoError(t, err, r)
		n := r[1]
		if n == 0 {
			n = int64(len(data)) - r[0]
		}
		require.True(t, bytes.Equal(data[r[0]:r[0]+n], b.Bytes()), "range %v", r)
		require.EqualValues(t, n, b.Len())
		require.EqualValues(t, len(data), b.FileSize())
		require.True(t, b.Current())
		require.NoError(t, b.Close())
	}
	for _, r := range [][2]int64{{0, int64(len(data)) + 1}, {int64(len(data)), 0}, {1 << 40, 1}, {-1, 1}, {0, -5}} {
		_, err := s.Map(f, r[0], r[1])
		require.ErrorIs(t, err, unix.EINVAL, r)
	}
	st := m.Pool.Stats()
	require.LessOrEqual(t, st.Used, st.Size)
	require.NotZero(t, st.Shared, "ranges inside the whole file's were resident")
}

// TestSparse: holes and unwritten extents are zeroes, also where memory was another file's before.
func TestSparse(t *testing.T) {
	m := sharetest.New(t, 256*mib, 16*mib)
	f := m.Open("sparse", os.O_CREATE|os.O_RDWR)
	s := connect(t, f)
	full := m.Write("full", bytes.Repeat([]byte{0xee}, 12*mib))
	b, err := s.Map(full, 0, 0)
	require.NoError(t, err)
	require.NoError(t, b.Close())
	require.NoError(t, f.Truncate(10*mib+77))
	_, err = f.WriteAt([]byte("here"), 5*mib+3)
	require.NoError(t, err)
	require.NoError(t, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 7*mib, mib))
	want, err := os.ReadFile(m.Path("sparse"))
	require.NoError(t, err)
	b, err = s.Map(f, 0, 0)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, b.Bytes()))
	require.NoError(t, b.Close())
}

// TestPermission: the descriptor is the permission.
func TestPermission(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	data := random(2, 3*mib)
	rw := m.Write("file", data)
	s := connect(t, rw)
	wo := m.Open("file", os.O_WRONLY)
	_, err := s.Map(wo, 0, 0)
	require.ErrorIs(t, err, unix.EACCES)
	ro := m.Open("file", os.O_RDONLY)
	_, err = s.MapPrivate(ro, 0, 0)
	require.ErrorIs(t, err, unix.EACCES)
	b, err := s.Map(ro, 0, 0)
	require.NoError(t, err)
	require.ErrorIs(t, b.Commit(ro, 0, 0, 4096), unix.EACCES)
	ap := m.Open("file", os.O_WRONLY|os.O_APPEND)
	require.ErrorIs(t, b.Commit(ap, 0, 0, 4096), unix.EACCES)

	// What is shared cannot be written, by no way that the kernel has.
	e, _ := b.Export()
	_, err = unix.Mmap(e.FD, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.ErrorIs(t, err, unix.EPERM)
	_, err = unix.Pwrite(e.FD, []byte("x"), 0)
	require.ErrorIs(t, err, unix.EPERM)
	require.ErrorIs(t, unix.Ftruncate(e.FD, 0), unix.EPERM)
	require.ErrorIs(t, unix.Fallocate(e.FD, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096), unix.EPERM)
	require.NoError(t, b.Close())

	path, err := unix.Open(m.Path("file"), unix.O_PATH, 0)
	require.NoError(t, err)
	pf := os.NewFile(uintptr(path), "by path")
	defer pf.Close()
	_, err = s.Map(pf, 0, 0)
	require.ErrorIs(t, err, unix.EBADF)
	dir := m.Open(".", os.O_RDONLY)
	_, err = s.Map(dir, 0, 0)
	require.ErrorIs(t, err, unix.EINVAL)
	other, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer other.Close()
	_, err = other.WriteString("not of this mount")
	require.NoError(t, err)
	_, err = s.Map(other, 0, 0)
	require.ErrorIs(t, err, unix.EXDEV)
	_, err = lanefs.Connect(other)
	require.ErrorIs(t, err, lanefs.ErrNotLaneFS)
	require.Error(t, unix.Fsetxattr(int(rw.Fd()), "system.lanefs.share", []byte("/elsewhere"), 0), "the attribute cannot be set")
}

// TestShared: two sessions have one buffer.
func TestShared(t *testing.T) {
	m := sharetest.New(t, 128*mib, 64*mib)
	f := m.Write("file", random(3, 8*mib))
	a, err := connect(t, f).Map(f, 0, 0)
	require.NoError(t, err)
	b, err := connect(t, f).Map(f, 3*mib, 2*mib)
	require.NoError(t, err)
	require.Equal(t, inode(t, a), inode(t, b), "the same memory")
	require.True(t, bytes.Equal(a.Bytes()[3*mib:5*mib], b.Bytes()))
	st := m.Pool.Stats()
	require.EqualValues(t, 1, st.Loads)
	require.EqualValues(t, 8*mib, st.Used)
	require.Equal(t, 2, st.Residents[0].Holders)
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
	st = m.Pool.Stats()
	require.EqualValues(t, 8*mib, st.Used, "ranges without holds stay resident")
	require.Zero(t, st.Residents[0].Holders)
}

func inode(t *testing.T, b *lanefs.Buffer) uint64 {
	t.Helper()
	e, _ := b.Export()
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(e.FD, &st))
	return st.Ino
}

// TestPool: what is held or pinned stays, the rest is evicted least recently used first, and a full pool says so.
func TestPool(t *testing.T) {
	m := sharetest.New(t, 256*mib, 16*mib)
	var f [6]*os.File
	for i := range f {
		f[i] = m.Write(string(rune('a'+i)), random(uint64(i), 4*mib))
	}
	s := connect(t, f[0])
	held, err := s.Map(f[0], 0, 0)
	require.NoError(t, err)
	_, err = s.Pin(f[1], true, -1)
	require.NoError(t, err)
	for _, i := range []int{2, 3, 2, 4} { // 3 is used less recently than 2, and makes room for 4
		b, err := s.Map(f[i], 0, 0)
		require.NoError(t, err)
		require.NoError(t, b.Close())
	}
	names := map[string]bool{}
	for _, r := range m.Pool.Stats().Residents {
		names[r.Name[len(r.Name)-1:]] = true
	}
	require.Equal(t, map[string]bool{"a": true, "b": true, "c": true, "e": true}, names)
	one, err := s.Map(f[5], 0, 0)
	require.NoError(t, err)
	two, err := s.Map(f[3], 0, 0)
	require.NoError(t, err)
	_, err = s.Map(f[2], 0, 0)
	require.ErrorIs(t, err, unix.ENOMEM)
	require.ErrorContains(t, err, "full")
	_, err = s.Alloc(f[0], 64*mib)
	require.ErrorIs(t, err, unix.ENOMEM)
	require.ErrorContains(t, err, "-o vram=")
	_, err = s.Pin(f[1], false, -1)
	require.NoError(t, err)
	three, err := s.Map(f[2], 0, 0)
	require.NoError(t, err, "what was pinned makes room")
	require.True(t, bytes.Equal(random(0, 4*mib), held.Bytes()))
	for _, b := range []*lanefs.Buffer{held, one, two, three} {
		require.NoError(t, b.Close())
	}
}

// TestEvicted: programs map more than the pool has, at the same time. Each has the bytes of its file as long as it has the range, and also of what it mapped itself and has given
// back: memory that makes room is another's by new pages only.
func TestEvicted(t *testing.T) {
	m := sharetest.New(t, 128*mib, 16*mib)
	const files, size = 10, 2*mib + 5
	var f [files]*os.File
	var data [files][]byte
	for i := range f {
		data[i] = random(uint64(50+i), size)
		f[i] = m.Write(string(rune('a'+i)), data[i])
	}
	var wg sync.WaitGroup
	for worker := range uint64(4) {
		wg.Go(func() {
			s, err := lanefs.Connect(f[0])
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			rng := rand.New(rand.NewPCG(worker, 5))
			var kept []byte
			which := 0
			for range 60 {
				i := rng.IntN(files)
				b, err := s.Map(f[i], 0, 0)
				if errors.Is(err, unix.ENOMEM) {
					continue // the others hold the rest
				}
				if err != nil {
					t.Error(err)
					return
				}
				if !bytes.Equal(data[i], b.Bytes()) || !b.Current() {
					t.Errorf("other bytes than file %d has", i)
				}
				if kept != nil {
					if !bytes.Equal(data[which], kept[:size]) {
						t.Errorf("what was file %d has changed", which)
					}
					unix.Munmap(kept)
				}
				e, _ := b.Export()
				if kept, err = unix.Mmap(e.FD, e.Offset, int(e.Size), unix.PROT_READ, unix.MAP_SHARED); err != nil {
					t.Error(err)
					return
				}
				which = i
				if err := b.Close(); err != nil {
					t.Error(err)
				}
			}
			unix.Munmap(kept)
		})
	}
	wg.Wait()
	st := m.Pool.Stats()
	require.LessOrEqual(t, st.Used, st.Size)
	require.NotZero(t, st.Evicted)
	for _, r := range st.Residents {
		require.Zero(t, r.Holders)
	}
}

// TestCommit: memory becomes a file's content, durably, and page cache and sharers hear of it.
func TestCommit(t *testing.T) {
	m := sharetest.New(t, 256*mib, 64*mib)
	old := random(4, 5*mib)
	f := m.Write("file", old)
	s := connect(t, f)
	shared, err := s.Map(f, 0, 0)
	require.NoError(t, err)
	b, err := s.Alloc(f, 6*mib)
	require.NoError(t, err)
	require.Equal(t, make([]byte, 6*mib), b.Bytes())
	fresh := random(5, 6*mib)
	copy(b.Bytes(), fresh)
	want := old
	for _, c := range []struct{ off, at, n int64 }{{0, 0, 4096}, {8192, 4, 2 * mib}, {100, 77, 5}, {4*mib - 3, 1, 4096 + 8}, {6*mib + 5, 2, mib}, {0, 0, 6 * mib}} {
		_, err := os.ReadFile(m.Path("file")) // pages that must go
		require.NoError(t, err)
		require.NoError(t, b.Commit(f, c.off, c.at, c.n))
		if grown := c.off + c.n; grown > int64(len(want)) {
			want = append(want, make([]byte, grown-int64(len(want)))...)
		}
		copy(want[c.off:], fresh[c.at:c.at+c.n])
		got, err := os.ReadFile(m.Path("file"))
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got), "%v", c)
		require.False(t, shared.Current())
	}
	require.True(t, bytes.Equal(random(4, 5*mib), shared.Bytes()), "a buffer keeps its snapshot")
	require.ErrorIs(t, b.Commit(f, 0, 6*mib, 1), unix.EINVAL)
	again, err := s.Map(f, 0, 0)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, again.Bytes()))
}

// TestKilled: a client that dies leaves nothing held.
func TestKilled(t *testing.T) {
	m := sharetest.New(t, 128*mib, 16*mib)
	f := m.Write("file", random(6, 4*mib))
	cmd, ready := child(t, "hold", m.Path("file"))
	require.Equal(t, "held\n", ready(), "what the child says")
	require.Equal(t, 1, m.Pool.Stats().Residents[0].Holders)
	b, err := connect(t, f).Map(f, 0, 0)
	require.NoError(t, err)
	require.EqualValues(t, 1, m.Pool.Stats().Loads, "two processes, one load")
	require.NoError(t, cmd.Process.Signal(syscall.SIGKILL))
	_ = cmd.Wait()
	eventually(t, "the pool notices", func() bool {
		st := m.Pool.Stats()
		return st.Used == 4*mib && st.Residents[0].Holders == 1
	})
	require.True(t, bytes.Equal(random(6, 4*mib), b.Bytes()))
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if f() {
			return
		}
	}
	require.Fail(t, "gave up waiting", what)
}
