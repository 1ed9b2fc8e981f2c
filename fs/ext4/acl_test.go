package ext4_test

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// TestEmptyACL: an ACL without entries is none, by each way to set it. Stored as it is, it would be damage for whoever reads it.
func TestEmptyACL(t *testing.T) {
	img := disktest.Make(t, "16M")
	v, done := open(t, img, ext4.Options{})
	root, err := v.Root()
	require.NoError(t, err)
	empty := binary.LittleEndian.AppendUint32(nil, 2) // posix_acl_xattr_header
	full := append(empty[:4:4], 1, 0, 6, 0, 255, 255, 255, 255, 4, 0, 4, 0, 255, 255, 255, 255, 32, 0, 4, 0, 255, 255, 255, 255)
	dir, err := root.Mkdir("dir", 0o755, 0, 0, ext4.Xattrs{{Name: ext4.XattrACLDefault, Value: empty}})
	require.NoError(t, err)
	for _, name := range []string{ext4.XattrACLDefault, ext4.XattrACLAccess} {
		_, err = dir.Getxattr(name)
		require.ErrorIs(t, err, ext4.ErrNoAttr)
		for _, before := range []bool{false, true} {
			if before {
				require.NoError(t, dir.Setxattr(name, full, 0))
			}
			require.NoError(t, dir.Setxattr(name, empty, 0))
			_, err = dir.Getxattr(name)
			require.ErrorIs(t, err, ext4.ErrNoAttr)
		}
	}
	require.NoError(t, dir.SetACL(full, 0o644, 0))
	require.NoError(t, dir.SetACL(empty, 0o755, 0))
	names, err := dir.Listxattr()
	require.NoError(t, err)
	require.Empty(t, names)
	dir.Put()
	root.Put()
	done()
	disktest.Fsck(t, img)
}
