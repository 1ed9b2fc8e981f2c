package dir

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
	"github.com/lanefs/lanefs/fs/ext4/xattr"
)

// TestInline reads directories that the kernel put inside their inodes.
func TestInline(t *testing.T) {
	img := disktest.Make(t, "16M", "-O", "inline_data", "-I", "512")
	want := map[string]map[string]uint32{}
	disktest.Mount(t, img, "", func(dir string) {
		for _, n := range []int{0, 1, 3, 5, 12} {
			d := filepath.Join(dir, fmt.Sprint(n))
			require.NoError(t, os.Mkdir(d, 0o755))
			for i := range n {
				require.NoError(t, os.Mkdir(filepath.Join(d, fmt.Sprintf("name-%d", i)), 0o755))
			}
			if n > 2 {
				require.NoError(t, os.Remove(filepath.Join(d, "name-1")))
			}
			w := map[string]uint32{".": ino(t, d), "..": disk.InoRoot}
			for i := range n {
				if i != 1 || n <= 2 {
					w[fmt.Sprintf("name-%d", i)] = ino(t, filepath.Join(d, fmt.Sprintf("name-%d", i)))
				}
			}
			want[filepath.Base(d)] = w
		}
	})
	m := disktest.Open(t, img)
	root, rs := openDir(t, m, disk.InoRoot)
	for name, w := range want {
		dino, _, err := root.Lookup(rs, name)
		require.NoError(t, err)
		n, slot := m.Inode(dino)
		require.NotZero(t, n.Flags&disk.FlInlineData)
		_, err = New(m.Superblock, dino, &n)
		require.Error(t, err)
		a, err := xattr.New(m.Superblock).FindBody("inode", n.XattrArea(slot), xattr.IndexSystem, "data")
		require.NoError(t, err)
		in := Inline{Dir: InlineDir(m.Superblock, dino), Block: n.Block[:], More: a.Value}
		require.EqualValues(t, n.Size, len(in.Block)+len(in.More))

		got := map[string]uint32{}
		cookie := uint64(0)
		for more := true; more; { // one at a time
			more = false
			require.NoError(t, in.Read(cookie, func(e Entry, next uint64) bool {
				if more {
					return false
				}
				got[string(e.Name)] = e.Ino
				cookie, more = next, true
				return true
			}))
		}
		require.Equal(t, w, got)
		for n, want := range w {
			i, ft, err := in.Lookup(n)
			require.NoError(t, err)
			require.Equal(t, want, i)
			require.EqualValues(t, FTDir, ft)
		}
		_, _, err = in.Lookup("name-99")
		require.ErrorIs(t, err, ErrNotExist)
		empty, err := in.Empty()
		require.NoError(t, err)
		require.Equal(t, len(w) == 2, empty)
	}
}
