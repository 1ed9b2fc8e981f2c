package ext4_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// TestNewXattrs: a file made with attributes has them; one that cannot have them is not made, and takes nothing.
func TestNewXattrs(t *testing.T) {
	for _, mkfs := range [][]string{nil, {"-O", "inline_data"}, {"-I", "128"}, {"-O", "ea_inode"}} {
		t.Run(fmt.Sprint(mkfs), func(t *testing.T) {
			img := disktest.Make(t, "16M", append([]string{"-b", "1024"}, mkfs...)...)
			v, done := open(t, img, ext4.Options{})
			root, err := v.Root()
			require.NoError(t, err)
			small, large := []byte("value"), make([]byte, 700)
			for name, attrs := range map[string]ext4.Xattrs{
				"small": {{Name: "user.a", Value: small}},
				"large": {{Name: "user.a", Value: large}, {Name: "trusted.b", Value: small}},
			} {
				for kind, op := range map[string]func(with ...ext4.With) (*ext4.Inode, error){
					"file":      func(w ...ext4.With) (*ext4.Inode, error) { return root.Create(name+"f", 0o100644, 0, 0, 0, 0, w...) },
					"directory": func(w ...ext4.With) (*ext4.Inode, error) { return root.Mkdir(name+"d", 0o755, 0, 0, w...) },
					"symlink":   func(w ...ext4.With) (*ext4.Inode, error) { return root.Symlink(name+"s", "there", 0, 0, w...) },
					"tmpfile":   func(w ...ext4.With) (*ext4.Inode, error) { return root.Tmpfile(0o644, 0, 0, w...) },
				} {
					before := v.Statfs()
					n, err := op(append([]ext4.With{ext4.UseReserved}, append(attrs, ext4.Xattr{Name: "user.big", Value: make([]byte, 1000)}))...)
					if slices.Contains(mkfs, "ea_inode") {
						require.NoError(t, err, kind) // the value gets an inode, which goes with the file
						n.Put()
						require.NoError(t, remove(root, name, kind))
					} else {
						require.ErrorIs(t, err, ext4.ErrNoSpace, kind)
					}
					_, err = op(ext4.Xattrs{{Name: "nonsense", Value: small}})
					require.ErrorIs(t, err, ext4.ErrNotSup, kind)
					require.NoError(t, v.Sync())
					require.Equal(t, before, v.Statfs(), "%s: nothing was taken", kind)

					in, err := op(attrs)
					require.NoError(t, err, kind)
					for _, a := range attrs {
						got, err := in.Getxattr(a.Name)
						require.NoError(t, err, kind)
						require.Equal(t, a.Value, got, kind)
					}
					in.Put()
				}
			}
			root.Put()
			done()
			disktest.Fsck(t, img)
		})
	}
}

// remove takes away what the test made.
func remove(root *ext4.Inode, name, kind string) error {
	switch kind {
	case "file":
		return root.Unlink(name + "f")
	case "directory":
		return root.Rmdir(name + "d")
	case "symlink":
		return root.Unlink(name + "s")
	}
	return nil
}
