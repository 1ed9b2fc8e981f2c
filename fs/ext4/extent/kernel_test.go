package extent

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
)

// fileNodes reads nodes from an image.
type fileNodes struct {
	*memNodes
	f  *os.File
	bs int
}

func (n fileNodes) Get(b disk.Block) (Node, error) {
	if n.at[b] == nil {
		m := &memNode{m: n.memNodes, b: b, data: make([]byte, n.bs)}
		if _, err := n.f.ReadAt(m.data, int64(b)*int64(n.bs)); err != nil {
			return nil, err
		}
		n.at[b] = m
	}
	return n.memNodes.Get(b)
}

// A file that the kernel made of 33,000 extents, a tree three levels deep: its upper half written, its lower unwritten.
func TestKernelsDeepTree(t *testing.T) {
	const blocks = 66000
	path := filepath.Join(t.TempDir(), "image")
	mnt := filepath.Join(t.TempDir(), "mnt")
	require.NoError(t, os.Mkdir(mnt, 0o755))
	if os.Geteuid() != 0 {
		t.Skip("not root: cannot mount an image through a loop device")
	}
	run := func(args ...string) {
		t.Helper()
		out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
		require.NoError(t, err, "%q: %s", args, out)
	}
	if _, err := exec.LookPath("mkfs.ext4"); err != nil {
		t.Skip("mkfs.ext4 is not installed: install e2fsprogs to run this test")
	}
	run("mkfs.ext4", "-q", "-F", "-b", "1024", "-O", "metadata_csum_seed", path, "120M")
	if out, err := exec.Command("mount", "-o", "loop", path, mnt).CombinedOutput(); err != nil {
		t.Skipf("cannot mount an ext4 image through a loop device here: %s", out)
	}
	mounted := true
	umount := func() {
		if mounted {
			mounted = false
			require.NoError(t, loopmount.Unmount(mnt))
		}
	}
	t.Cleanup(umount)
	ino := punched(t, filepath.Join(mnt, "file"), blocks)
	umount()

	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	tree := treeOf(t, f, ino)
	depth, err := tree.Depth()
	require.NoError(t, err)
	require.Equal(t, 3, depth)
	require.NoError(t, exactKeys(tree, node(tree.Root)))
	checkPunched(t, f, tree, blocks)

	// And our own changes to it hold: fill all holes, then remove everything.
	mem := tree.Nodes.(fileNodes)
	for l := uint32(1); l < blocks; l += 2 {
		_, err := tree.Insert(Extent{l, 1, 5, false})
		require.NoError(t, err)
	}
	require.NoError(t, tree.Check())
	_, n, err := tree.Count()
	require.NoError(t, err)
	require.EqualValues(t, blocks, n)
	end, err := tree.Remove(0, MaxBlock, 1<<30, func(Extent) error { return nil })
	require.NoError(t, err)
	require.Zero(t, end)
	require.Empty(t, mem.at)
}

// punched makes a file of so many blocks of 1 KiB and punches out every odd one. It returns the inode's number.
func punched(t *testing.T, path string, blocks int) uint32 {
	f, err := os.Create(path)
	require.NoError(t, err)
	defer f.Close()
	fd := int(f.Fd())
	require.NoError(t, unix.Fallocate(fd, 0, 0, int64(blocks)<<10))
	b := make([]byte, 1024)
	for i := blocks / 2; i < blocks; i++ {
		binary.LittleEndian.PutUint64(b, uint64(i)^0x1234567)
		_, err := f.WriteAt(b, int64(i)<<10)
		require.NoError(t, err)
	}
	for i := 1; i < blocks; i += 2 {
		require.NoError(t, unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(i)<<10, 1024))
	}
	require.NoError(t, f.Sync())
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(fd, &st))
	return uint32(st.Ino)
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
	mem := newMemNodes(int(bs))
	return &Tree{Ino: ino, Root: n.Block[:], Nodes: fileNodes{mem, f, int(bs)}, NodeSize: int(bs), Blocks: 1 << 47,
		Checksums: true, Seed: disk.InodeSeed(sb.CsumSeed(), ino, n.Generation)}
}

func checkPunched(t *testing.T, f *os.File, tree *Tree, blocks uint32) {
	b := make([]byte, 8)
	seen := uint32(0)
	require.NoError(t, tree.Walk(nil, func(x Extent) error {
		if x.Len != 1 || x.Lblk%2 != 0 {
			t.Fatalf("unexpected extent %v", x)
		}
		seen++
		if x.Unwritten != (x.Lblk < blocks/2) {
			t.Fatalf("extent %v: wrong state", x)
		}
		if x.Unwritten {
			return nil
		}
		if _, err := f.ReadAt(b, int64(x.Pblk)<<10); err != nil {
			return err
		}
		if v := binary.LittleEndian.Uint64(b) ^ 0x1234567; v != uint64(x.Lblk) {
			t.Fatalf("extent %v holds block %d", x, v)
		}
		return nil
	}))
	require.Equal(t, blocks/2, seen)
}
