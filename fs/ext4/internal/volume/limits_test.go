package volume

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// TestLimits holds the largest sizes against those that Linux 6.18's ext4 allows, found by bisection with ftruncate(2) on
// empty volumes of each kind.
func TestLimits(t *testing.T) {
	for _, c := range []struct {
		bits          uint
		huge, extents bool
		blocks        int64
	}{
		{10, false, false, 16843020},
		{11, false, false, 134480396},
		{12, false, false, 536346110},
		{10, true, false, 16843020},
		{11, true, false, 134480396},
		{12, true, false, 1074791436},
		{10, true, true, 1<<32 - 1},
		{11, true, true, 1<<32 - 1},
		{12, true, true, 1<<32 - 1},
		{10, false, true, 1<<31 - 1},
		{12, false, true, 1<<29 - 1},
	} {
		v := &FS{BlockBits: c.bits, BlockSize: 1 << c.bits, Super: &disk.Superblock{}}
		if c.huge {
			v.Super.FeatureROCompat = disk.ROCompatHugeFile
		}
		i := &Inode{FS: v}
		if c.extents {
			i.Disk.Flags = disk.FlExtents
		}
		require.Equal(t, c.blocks<<c.bits, i.MaxSize(), "%+v", c)
	}
}
