package vm

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// fill puts a tree of many kinds under dir.
func fill(t testing.TB, dir string, seed uint64) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	content := func(n int) []byte {
		b := make([]byte, n)
		for i := 0; i+8 <= n; i += 8 {
			v := r.Uint64()
			for j := range 8 {
				b[i+j] = byte(v >> (8 * j))
			}
		}
		return b
	}
	for i := range 24 {
		sub := filepath.Join(dir, fmt.Sprintf("d%d-%d", seed, i%4))
		require.NoError(t, os.MkdirAll(sub, 0o755))
		n := r.IntN(20000)
		if i%12 == 0 {
			n = 1<<20 + r.IntN(1<<20)
		}
		require.NoError(t, os.WriteFile(filepath.Join(sub, fmt.Sprintf("f%d", i)), content(n), 0o640))
	}
	require.NoError(t, os.Symlink("../f1", filepath.Join(dir, fmt.Sprintf("link%d", seed))))
	require.NoError(t, os.Link(filepath.Join(dir, fmt.Sprintf("d%d-1/f1", seed)), filepath.Join(dir, fmt.Sprintf("hard%d", seed))))
	sparse, err := os.Create(filepath.Join(dir, fmt.Sprintf("sparse%d", seed)))
	require.NoError(t, err)
	_, err = sparse.WriteAt([]byte("end"), 5<<20)
	require.NoError(t, err)
	require.NoError(t, sparse.Close())
	require.NoError(t, os.Mkdir(filepath.Join(dir, fmt.Sprintf("many%d", seed)), 0o700))
	for i := range 100 {
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("many%d/a-name-of-some-length-%04d", seed, i)), nil, 0o600))
	}
}

// tree describes everything under dir: names, kinds, modes, sizes, contents.
func tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		s := fmt.Sprintf("mode %o links %d uid %d mtime %d.%09d", st.Mode, st.Nlink, st.Uid, st.Mtim.Sec, st.Mtim.Nsec)
		switch {
		case d.Type().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			s += fmt.Sprintf(" size %d sha %x", st.Size, sha256.Sum256(b))
		case d.Type()&fs.ModeSymlink != 0:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			s += " to " + to
		}
		all[rel] = s
		return nil
	}))
	require.Greater(t, len(all), 1, "an empty tree proves nothing")
	return all
}

// roundTrip tests one controller: the kernel makes and fills a volume; LaneFS, with the mount options given, reads the same and
// writes more; the kernel and e2fsck check it.
func roundTrip(t *testing.T, addr string, mkfsArgs []string, mountArgs ...string) {
	t.Helper()
	roundTripSeen(t, addr, func(string) {}, mkfsArgs, mountArgs...)
}

// roundTripSeen is roundTrip with a function that examines the mount before its end.
func roundTripSeen(t *testing.T, addr string, look func(dir string), mkfsArgs []string, mountArgs ...string) {
	t.Helper()
	dev := disk(t, addr)
	mkfs(t, dev, mkfsArgs...)
	var before map[string]string
	kernelMount(t, dev, func(dir string) {
		fill(t, dir, 1)
		before = tree(t, dir)
	})
	var after map[string]string
	t.Run("lanefs", func(t *testing.T) {
		bound(t, addr)
		dir := mount(t, addr, mountArgs...)
		require.Equal(t, before, tree(t, dir), "LaneFS reads what the kernel wrote")
		fill(t, dir, 2)
		must(t, "cp", "-a", filepath.Join(dir, "d1-0"), filepath.Join(dir, "copied"))
		require.NoError(t, dd("/dev/urandom", filepath.Join(dir, "dd"), "bs=64k", "count=32"))
		require.NoError(t, os.RemoveAll(filepath.Join(dir, "d1-3")))
		after = tree(t, dir)
		look(dir)
		lanefs(t, "umount", dir)
	})
	if t.Failed() {
		return
	}
	dev = disk(t, addr)
	fsck(t, dev)
	kernelMount(t, dev, func(dir string) {
		require.Equal(t, after, tree(t, dir), "the kernel reads what LaneFS wrote")
	})
	fsck(t, dev)
}

func TestRoundTrip(t *testing.T) {
	roundTrip(t, nvme0, nil)
}
