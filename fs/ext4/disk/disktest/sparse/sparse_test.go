package sparse

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestCopy: a copy has the same bytes and length, over what was there before, and no blocks for holes and zeroes.
func TestCopy(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	for _, c := range []struct {
		size   int64
		data   map[int64]int // bytes that are not zero, at their offsets
		blocks int64         // of the copy, KiB at most
	}{
		{0, nil, 0},
		{1, map[int64]int{0: 1}, 4},
		{16 << 20, nil, 0},
		{16<<20 + 100, map[int64]int{0: 5000, 3<<20 - 10: 20, 8 << 20: 2 << 20, 16<<20 + 99: 1}, 2 << 10 * 11 / 10},
	} {
		f, err := os.Create(from)
		require.NoError(t, err)
		require.NoError(t, f.Truncate(c.size))
		if c.size > 12<<20 {
			_, err = f.WriteAt(make([]byte, 1<<20), 11<<20) // zeroes that are no hole
			require.NoError(t, err)
		}
		for at, n := range c.data {
			b := make([]byte, n)
			for i := range b {
				b[i] = byte(i)%200 + 1
			}
			_, err = f.WriteAt(b, at)
			require.NoError(t, err)
		}
		require.NoError(t, f.Close())
		require.NoError(t, os.WriteFile(to, []byte("what was there"), 0o600))
		require.NoError(t, Copy(from, to))
		want, err := os.ReadFile(from)
		require.NoError(t, err)
		got, err := os.ReadFile(to)
		require.NoError(t, err)
		require.True(t, string(want) == string(got), c.size)
		var st unix.Stat_t
		require.NoError(t, unix.Stat(to, &st))
		require.LessOrEqual(t, st.Blocks/2, c.blocks, c.size)
	}
	require.ErrorIs(t, Copy(filepath.Join(dir, "none"), to), os.ErrNotExist)
}

// TestData: holes are left out.
func TestData(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "sparse"))
	require.NoError(t, err)
	defer f.Close()
	_, err = f.WriteAt(make([]byte, 100), 1<<20)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(3<<20))
	covered := int64(0)
	require.NoError(t, Data(f, 3<<20, func(off, n int64) error {
		require.True(t, off <= 1<<20 && off+n >= 1<<20+100, "%d+%d", off, n)
		covered += n
		return nil
	}))
	require.True(t, covered >= 100 && covered < 1<<20, covered)
	require.NoError(t, Data(f, 1<<19, func(off, n int64) error {
		require.Fail(t, "a hole", "%d+%d", off, n)
		return nil
	}))
}
