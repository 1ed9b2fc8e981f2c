package blockmap

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest/loopmount"
	"github.com/lanefs/lanefs/fs/ext4/extent"
)

// A sparse file that the kernel wrote on ext2, with blocks at every level of the map.
func TestKernelsMap(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root: cannot mount an image through a loop device")
	}
	if _, err := exec.LookPath("mkfs.ext4"); err != nil {
		t.Skip("mkfs.ext4 is not installed: install e2fsprogs to run this test")
	}
	path, mnt := filepath.Join(t.TempDir(), "image"), t.TempDir()
	out, err := exec.Command("mkfs.ext4", "-q", "-F", "-t", "ext2", "-b", "1024", path, "20M").CombinedOutput()
	require.NoError(t, err, "%s", out)
	if out, err := exec.Command("mount", "-t", "ext4", "-o", "loop", path, mnt).CombinedOutput(); err != nil {
		t.Skipf("cannot mount an ext2 image through a loop device here: %s", out)
	}
	mounted := true
	umount := func() {
		if mounted {
			mounted = false
			require.NoError(t, loopmount.Unmount(mnt))
		}
	}
	t.Cleanup(umount)

	const n = 256 // numbers in a node
	var where []uint32
	for _, l := range []uint32{0, 11, 12, 12 + n - 1, 12 + n, 12 + n + 3*n, 12 + n + n*n - 1, 12 + n + n*n, 12 + n + n*n + 5*n*n + 7} {
		where = append(where, l, l+1, l+2)
	}
	f, err := os.Create(filepath.Join(mnt, "file"))
	require.NoError(t, err)
	b := make([]byte, 1024)
	written := map[uint32]bool{}
	for _, l := range where {
		written[l] = true
		binary.LittleEndian.PutUint64(b, uint64(l)^0x7654321)
		_, err := f.WriteAt(b, int64(l)<<10)
		require.NoError(t, err)
	}
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(int(f.Fd()), &st))
	require.NoError(t, f.Close())
	umount()

	img, err := os.Open(path)
	require.NoError(t, err)
	defer img.Close()
	tree := treeOf(t, img, uint32(st.Ino))
	l := uint32(0)
	require.NoError(t, tree.MapRange(0, tree.MaxBlock(), func(x extent.Extent) error {
		require.Equal(t, l, x.Lblk)
		l = x.End()
		if x.Hole() {
			return nil // a written block in it is missed below
		}
		for i := range x.Len {
			require.True(t, written[x.Lblk+i], "block %d", x.Lblk+i)
			delete(written, x.Lblk+i)
			_, err := img.ReadAt(b[:8], int64(x.Pblk+disk.Block(i))<<10)
			require.NoError(t, err)
			require.Equal(t, uint64(x.Lblk+i), binary.LittleEndian.Uint64(b)^0x7654321)
		}
		return nil
	}))
	require.Empty(t, written)
	nodes, _, err := tree.Count()
	require.NoError(t, err)
	require.Greater(t, nodes, uint64(9))
	_, err = tree.Remove(0, tree.MaxBlock(), 1<<30, func(extent.Extent) error { return nil })
	require.NoError(t, err)
	require.Equal(t, make([]byte, extent.RootSize), tree.Root)
}

func treeOf(t *testing.T, f *os.File, ino uint32) *Tree {
	read := func(off int64, n int) []byte {
		b := make([]byte, n)
		_, err := f.ReadAt(b, off)
		require.NoError(t, err)
		return b
	}
	sb, err := disk.DecodeSuperblock(read(disk.SuperblockOffset, disk.SuperblockSize))
	require.NoError(t, err)
	bs := int64(sb.BlockSize())
	group, block, off := sb.InodeLocation(ino)
	di, doff := sb.DescLocation(group)
	d, err := sb.DecodeGroup(group, read(int64(sb.DescBlock(di))*bs+int64(doff), sb.DescSize()))
	require.NoError(t, err)
	n, err := sb.DecodeInode(ino, read((int64(d.InodeTable)+int64(block))*bs+int64(off), int(sb.InodeSize)))
	require.NoError(t, err)
	require.Zero(t, n.Flags&disk.FlExtents)
	tree, mem := newTree(int(bs))
	tree.Root, tree.Blocks = n.Block[:], disk.Block(sb.BlocksCount)
	mem.read = func(b disk.Block) ([]byte, error) { return read(int64(b)*bs, int(bs)), nil }
	return tree
}
