package lanefs_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs"
	"github.com/lanefs/lanefs/fs/share/sharetest"
	lanefs "github.com/lanefs/lanefs/sdk/go"
)

const (
	far     = 5 << 30 // beyond what 32 bits count
	farSize = far + 12345
)

// ranges of the files of TestFiles: offset and length.
var ranges = [][2]int64{
	{0, 1}, {0, 7}, {3, 20}, {0, 30}, {4095, 2}, {1, 8191}, {0, 70_001}, {69_999, 2}, {2*mib - 1, 3*mib + 2}, {4<<30 - 5, 10}, {far - 4096, 8192}, {far + 1, 12344},
}

// asRead checks that a range of a file is in device memory, and comes by a stage, as read(2) has it.
func asRead(t *testing.T, s *lanefs.Session, g *lanefs.Stage, f *os.File) {
	t.Helper()
	file, err := s.Open(f)
	require.NoError(t, err)
	size := sizeOf(f.Stat())
	for _, r := range ranges {
		n := max(min(r[1], size-r[0]), 0)
		want := make([]byte, r[1])
		_, err := f.ReadAt(want[:n], r[0])
		require.NoError(t, err)
		got := bytes.Repeat([]byte("x"), int(r[1]))
		results, err := g.Read(file, got, []lanefs.Piece{{Off: r[0], Len: r[1]}})
		require.NoError(t, err)
		require.Equal(t, n, results[0], "%s: %v", f.Name(), r)
		require.True(t, bytes.Equal(want, got), "%s: %v", f.Name(), r)
		b, err := s.Map(f, r[0], r[1])
		if n < r[1] {
			require.ErrorIs(t, err, unix.EINVAL, "%s: %v", f.Name(), r)
			continue
		}
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, b.Bytes()), "%s: %v", f.Name(), r)
		require.NoError(t, b.Close())
	}
	if size == 0 {
		_, err := s.Map(f, 0, 0)
		require.ErrorIs(t, err, unix.EINVAL, "no memory has no bytes")
	}
	require.NoError(t, file.Close())
}

// TestFiles: files that are empty, in their inode, sparse, unwritten, beyond 4 GiB or sealed by fs-verity, on volumes with extents and with block maps, of small and of large blocks,
// mounted read-only too: device memory and stages have what read(2) has, and what they write read(2) has.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	data := random(40, 3*mib+30)
	for name, of := range map[string][]byte{"empty": nil, "tiny": data[:30], "odd": data[:70_001], "sparse": data[:5000]} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), of, 0o644))
	}
	sparse, err := os.OpenFile(filepath.Join(dir, "sparse"), os.O_WRONLY, 0)
	require.NoError(t, err)
	for _, at := range []int64{3*mib + 1, 4<<30 - 3, far + 1000} {
		_, err = sparse.WriteAt(data[at%1000:][:2000], at)
		require.NoError(t, err)
	}
	require.NoError(t, sparse.Truncate(farSize))
	require.NoError(t, sparse.Close())
	readOnly := func(o *fs.Options) { o.ReadOnly = true }
	for name, c := range map[string]struct {
		mkfs   []string
		change func(image string)
		set    []func(*fs.Options)
		write  bool
	}{
		"plain":        {nil, nil, nil, true},
		"inline":       {[]string{"-O", "inline_data", "-I", "256"}, nil, nil, true},
		"small blocks": {[]string{"-b", "1024"}, nil, nil, true},
		"block maps":   {[]string{"-O", "^extent,^64bit"}, nil, nil, true},
		"read-only":    {[]string{"-O", "inline_data", "-I", "256"}, nil, []func(*fs.Options){readOnly}, false},
		"verity": {[]string{"-O", "verity"}, func(image string) {
			const extents, verity = "0x180000", "odd" // FS_EXTENT_FL and FS_VERITY_FL
			out, err := exec.Command("debugfs", "-w", "-R", "set_inode_field /"+verity+" flags "+extents, image).CombinedOutput()
			require.NoError(t, err, "%s", out)
		}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := sharetest.NewOf(t, 128*mib, 32*mib, append(c.mkfs, "-d", dir), c.change, c.set...)
			flags := os.O_RDWR
			if !c.write {
				_, err := os.OpenFile(m.Path("odd"), flags, 0)
				require.ErrorIs(t, err, unix.EROFS)
				flags = os.O_RDONLY
			}
			first := m.Open("odd", flags)
			s := connect(t, first)
			g, err := s.NewStage(lanefs.StageOptions{Size: 2 * mib})
			require.NoError(t, err)
			for _, name := range []string{"empty", "tiny", "odd", "sparse"} {
				asRead(t, s, g, m.Open(name, flags))
			}
			if c.write {
				for _, name := range []string{"empty", "tiny", "odd", "sparse", "unwritten"} {
					writes(t, m, s, g, name, data)
				}
			} else {
				refuses(t, s, g, first)
			}
			require.NoError(t, g.Close())
		})
	}
}

// refuses checks that a file that is open to read only is not written to.
func refuses(t *testing.T, s *lanefs.Session, g *lanefs.Stage, f *os.File) {
	t.Helper()
	file, err := s.Open(f)
	require.NoError(t, err)
	_, err = g.Write(file, make([]byte, 10), []lanefs.Piece{{Len: 10}})
	require.ErrorIs(t, err, unix.EACCES)
	_, err = s.MapPrivate(f, 0, 0)
	require.ErrorIs(t, err, unix.EACCES)
	_, err = s.Alloc(f, 10)
	require.ErrorIs(t, err, unix.EACCES)
	require.NoError(t, file.Close())
}

// writes writes to a file by a stage and by commits, in the middle, across holes and behind the end.
func writes(t *testing.T, m *sharetest.Mount, s *lanefs.Session, g *lanefs.Stage, name string, data []byte) {
	t.Helper()
	f := m.Open(name, os.O_RDWR|os.O_CREATE)
	if name == "unwritten" {
		if err := unix.Fallocate(int(f.Fd()), 0, 0, 6*mib+5); err != nil {
			require.ErrorIs(t, err, unix.EOPNOTSUPP) // block maps have none
		}
		asRead(t, s, g, f)
	}
	file, err := s.Open(f)
	require.NoError(t, err)
	b, err := s.Alloc(f, int64(len(data)))
	require.NoError(t, err)
	copy(b.Bytes(), data)
	for i, r := range [][2]int64{{1, 3}, {20, 30}, {4090, 5000}, {mib + 3, 2*mib + 1}, {far + 7, 4096}, {far + 3*mib, 3 * mib}} {
		at := int64(i)*4 + int64(i%2)
		want := data[at : at+r[1]]
		if i%2 == 0 {
			_, err = g.Write(file, data, []lanefs.Piece{{Off: r[0], MemOff: at, Len: r[1]}})
		} else {
			err = b.Commit(f, r[0], at, r[1])
		}
		require.NoError(t, err, "%s: %v", name, r)
		got := make([]byte, r[1])
		_, err = f.ReadAt(got, r[0])
		require.NoError(t, err, "%s: %v", name, r)
		require.True(t, bytes.Equal(want, got), "%s: %v", name, r)
		require.LessOrEqual(t, r[0]+r[1], sizeOf(f.Stat()))
		asRead(t, s, g, f)
	}
	require.NoError(t, file.Close())
	require.NoError(t, b.Close())
}
