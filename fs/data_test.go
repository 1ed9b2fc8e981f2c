package fs

import (
	"bytes"
	"fmt"
	"io"
	"math/rand"
	"os"
	"os/exec"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// die ends a helper with a message and status 1.
func die(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	os.Exit(1)
}

func modes(t *testing.T, f func(t *testing.T, m *mounted)) {
	t.Run("through", func(t *testing.T) { f(t, newMount(t, Options{})) })
	t.Run("writeback", func(t *testing.T) { f(t, newMount(t, Options{WriteBack: true})) })
}

// TestModel writes, cuts and reads back at random places of a file, and compares with a plain slice.
func TestModel(t *testing.T) {
	modes(t, func(t *testing.T, m *mounted) {
		rng := rand.New(rand.NewSource(42))
		for _, flags := range []int{0, unix.O_DIRECT} {
			f, err := os.OpenFile(m.path(fmt.Sprint("model", flags)), os.O_RDWR|os.O_CREATE|flags, 0o644)
			require.NoError(t, err)
			unit := 1
			if flags != 0 {
				unit = 4096
			}
			var want []byte
			buf := aligned(3 << 20)
			steps := 200
			if raced {
				steps = 80
			}
			for step := range steps {
				off := rng.Intn(5<<20/unit) * unit
				n := (1 + rng.Intn(len(buf)/unit)) * unit
				if step%3 != 0 {
					n = min(n, 4*4096)
				}
				switch rng.Intn(6) {
				case 0:
					require.NoError(t, f.Truncate(int64(off)))
					want = resize(want, off)
				case 1, 2, 3:
					rng.Read(buf[:n])
					_, err := f.WriteAt(buf[:n], int64(off))
					require.NoError(t, err)
					want = resize(want, max(len(want), off+n))
					copy(want[off:], buf[:n])
				default:
					got, err := f.ReadAt(buf[:n], int64(off))
					if err != io.EOF {
						require.NoError(t, err)
					}
					end := min(len(want), off+n)
					require.Equal(t, max(end-off, 0), got)
					require.True(t, off >= end || bytes.Equal(want[off:end], buf[:got]), "step %d at %d", step, off)
				}
			}
			require.NoError(t, f.Sync())
			require.NoError(t, f.Close())
			got, err := os.ReadFile(f.Name())
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, got))
		}
	})
}

// TestDirectAndCached: bytes written through a descriptor with O_DIRECT are read through one without, and the other way round.
func TestDirectAndCached(t *testing.T) {
	modes(t, func(t *testing.T, m *mounted) {
		rng := rand.New(rand.NewSource(7))
		cached, err := os.OpenFile(m.path("file"), os.O_RDWR|os.O_CREATE, 0o644)
		require.NoError(t, err)
		defer cached.Close()
		direct, err := os.OpenFile(m.path("file"), os.O_RDWR|unix.O_DIRECT, 0)
		require.NoError(t, err)
		defer direct.Close()
		want := make([]byte, 1<<20)
		buf := aligned(64 << 10)
		require.NoError(t, cached.Truncate(int64(len(want))))
		for step := range 300 {
			f := []*os.File{cached, direct}[rng.Intn(2)]
			n := (1 + rng.Intn(16)) * 4096
			off := rng.Intn((len(want)-n)/4096) * 4096
			if rng.Intn(2) == 0 {
				rng.Read(buf[:n])
				_, err = f.WriteAt(buf[:n], int64(off))
				copy(want[off:], buf[:n])
			} else {
				_, err = f.ReadAt(buf[:n], int64(off))
			}
			require.NoError(t, err)
			require.True(t, bytes.Equal(want[off:off+n], buf[:n]), "step %d", step)
		}
	})
}

func resize(b []byte, n int) []byte {
	if n <= len(b) {
		return b[:n:n]
	}
	return append(b, make([]byte, n-len(b))...)
}

func aligned(n int) []byte {
	b := make([]byte, n+4096)
	skip := -int(uintptr(unsafe.Pointer(&b[0]))) & 4095
	return b[skip : skip+n]
}

func TestSparse(t *testing.T) { modes(t, testSparse) }

func testSparse(t *testing.T, m *mounted) {
	f, err := os.Create(m.path("sparse"))
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, f.Truncate(1<<33))
	_, err = f.WriteAt(bytes.Repeat([]byte{1}, 8192), 1<<20)
	require.NoError(t, err)
	seek := func(off int64, whence int) any {
		n, err := unix.Seek(int(f.Fd()), off, whence)
		if err != nil {
			return err
		}
		return n
	}
	require.EqualValues(t, 1<<20, seek(0, unix.SEEK_DATA))
	require.EqualValues(t, 1<<20+5000, seek(1<<20+5000, unix.SEEK_DATA))
	require.EqualValues(t, 1<<20+8192, seek(1<<20, unix.SEEK_HOLE))
	require.EqualValues(t, 0, seek(0, unix.SEEK_HOLE))
	require.Equal(t, unix.ENXIO, seek(1<<20+8192, unix.SEEK_DATA))
	require.Equal(t, unix.ENXIO, seek(1<<33, unix.SEEK_HOLE))
	st := stat(t, m.path("sparse"))
	require.EqualValues(t, 1<<33, st.Size)
	require.LessOrEqual(t, st.Blocks, int64(64), "a sparse file takes no room")
	buf := make([]byte, 100)
	_, err = f.ReadAt(buf, 1<<32)
	require.NoError(t, err)
	require.Equal(t, make([]byte, 100), buf)
}

func TestFallocate(t *testing.T) {
	m := newMount(t, Options{})
	f, err := os.Create(m.path("file"))
	require.NoError(t, err)
	defer f.Close()
	falloc := func(mode uint32, off, n int64) error { return unix.Fallocate(int(f.Fd()), mode, off, n) }
	err = falloc(0, 0, 1<<20)
	if err == unix.EOPNOTSUPP {
		t.Skip("SKIPPED: the volume does not do fallocate yet")
	}
	require.NoError(t, err)
	require.EqualValues(t, 1<<20, stat(t, f.Name()).Size)
	require.GreaterOrEqual(t, stat(t, f.Name()).Blocks, int64(2048))
	require.NoError(t, falloc(unix.FALLOC_FL_KEEP_SIZE, 1<<20, 1<<20))
	require.EqualValues(t, 1<<20, stat(t, f.Name()).Size)
	_, err = f.WriteAt(bytes.Repeat([]byte{7}, 1<<20), 0)
	require.NoError(t, err)
	require.NoError(t, falloc(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 4096, 8192))
	got, err := os.ReadFile(f.Name())
	require.NoError(t, err)
	want := bytes.Repeat([]byte{7}, 1<<20)
	clear(want[4096 : 4096+8192])
	require.True(t, bytes.Equal(want, got))
	require.ErrorIs(t, falloc(0, 1<<62, 1<<62-1), unix.EFBIG)
}

func TestCopyFileRange(t *testing.T) {
	m := newMount(t, Options{})
	data := make([]byte, 5<<20+123)
	rand.New(rand.NewSource(1)).Read(data)
	require.NoError(t, os.WriteFile(m.path("from"), data, 0o644))
	from, err := os.Open(m.path("from"))
	require.NoError(t, err)
	defer from.Close()
	to, err := os.Create(m.path("to"))
	require.NoError(t, err)
	defer to.Close()
	off, at, left := int64(100), int64(7), len(data)
	for {
		n, err := unix.CopyFileRange(int(from.Fd()), &off, int(to.Fd()), &at, left, 0)
		require.NoError(t, err)
		if n == 0 {
			break
		}
	}
	got, err := os.ReadFile(m.path("to"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(append(make([]byte, 7), data[100:]...), got))
}

// TestReservedBlocks: root can write when the volume is full for other users.
func TestReservedBlocks(t *testing.T) {
	m := newMount(t, Options{}, "-m", "10")
	needTool(t, "setpriv")
	require.NoError(t, os.Chmod(m.dir, 0o777))
	as := func(uid int, name, size string) error {
		return exec.Command("setpriv", fmt.Sprint("--reuid=", uid), fmt.Sprint("--regid=", uid), "--clear-groups", "--", "fallocate", "-l", size, m.path(name)).Run()
	}
	var st unix.Statfs_t
	require.NoError(t, unix.Statfs(m.dir, &st))
	require.InDelta(t, st.Blocks/10+st.Blocks/50, st.Bfree-st.Bavail, float64(st.Blocks/50), "and those for nodes of extent trees")
	require.NoError(t, as(nobody, "full", fmt.Sprint(st.Bavail*uint64(st.Bsize)-1<<20)))
	require.Error(t, as(nobody, "more", "10M"))
	require.NoError(t, as(0, "roots", "10M"))
	require.Error(t, as(nobody, "still more", "10M"))
	require.NoError(t, unix.Statfs(m.dir, &st))
	require.LessOrEqual(t, st.Bavail, uint64(1<<20)/uint64(st.Bsize))
}
