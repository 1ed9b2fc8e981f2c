// Package disktest makes ext4 images with e2fsprogs and the kernel, and reads and patches them block by block, so that
// tests can hold the codecs against the real thing. It is for tests only; what is missing on the machine makes a test
// skip and say so.
package disktest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest/loopmount"
)

// Tool skips the test if a program is not installed.
func Tool(t testing.TB, names ...string) {
	t.Helper()
	for _, n := range names {
		if _, err := exec.LookPath(n); err != nil {
			t.Skipf("SKIPPED: %s is not installed", n)
		}
	}
}

// Make makes an image file of size (mke2fs notation, "64M") with mkfs.ext4 and the given options, and returns its path.
func Make(t testing.TB, size string, args ...string) string {
	t.Helper()
	Tool(t, "mkfs.ext4")
	img := filepath.Join(memory(t), "ext4.img")
	args = append([]string{"-q", "-F"}, args...)
	out, err := exec.Command("mkfs.ext4", append(args, img, size)...).CombinedOutput()
	if i := slices.Index(args, "-r"); err != nil && i >= 0 && strings.Contains(string(out), "-E revision=0") { // since e2fsprogs 1.47.1
		args = slices.Replace(args, i, i+2, "-E", "revision="+args[i+1])
		out, err = exec.Command("mkfs.ext4", append(args, img, size)...).CombinedOutput()
	}
	require.NoError(t, err, "mkfs.ext4 %q: %s", args, out)
	return img
}

// FirstFile is the number of the inode that the first file made on a fresh volume gets: lost+found has 11, and an orphan file, which newer
// versions of mkfs.ext4 make unasked, 12.
func FirstFile(t testing.TB, img string) uint32 {
	t.Helper()
	if m := Open(t, img); m.OrphanFileInum != 0 {
		return m.OrphanFileInum + 1
	}
	return 12
}

// memory is a directory for one test, in memory if there is a file system with room: programs and kernels that flush a volume wait
// for no medium then.
func memory(t testing.TB) string {
	t.Helper()
	const shm, room = "/dev/shm", 1 << 30
	var st unix.Statfs_t
	if err := unix.Statfs(shm, &st); err != nil || int64(st.Bavail)*st.Bsize < room {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp(shm, "ext4-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// Debugfs runs debugfs commands on the image and returns what they print.
func Debugfs(t testing.TB, img string, cmds ...string) string {
	t.Helper()
	Tool(t, "debugfs")
	c := exec.Command("debugfs", "-w", "-f", "-", img)
	c.Stdin = strings.NewReader(strings.Join(cmds, "\n") + "\n")
	var errs bytes.Buffer
	c.Stderr = &errs
	out, err := c.Output()
	require.NoError(t, err, "debugfs: %s", errs.String())
	return string(out)
}

// Fsck fails the test unless e2fsck -fn finds nothing to complain about.
func Fsck(t testing.TB, img string) {
	t.Helper()
	Tool(t, "e2fsck")
	out, err := exec.Command("e2fsck", "-fn", img).CombinedOutput()
	require.NoError(t, err, "e2fsck -fn: %s", out)
}

// FsckAll has e2fsck -p check a volume that is marked, which it must do in full. It need not say why: 1.47.2 does not where there is an orphan file. Then nothing is left to complain about.
func FsckAll(t testing.TB, img string) {
	t.Helper()
	Tool(t, "e2fsck")
	out, err := exec.Command("e2fsck", "-p", img).CombinedOutput() // its status tells what it mended
	require.NotContains(t, string(out), "clean, ", "%v", err)
	Fsck(t, img)
}

// Mount mounts the image through the kernel's ext4 and calls fn with the directory; it is unmounted when fn returns.
func Mount(t testing.TB, img, opts string, fn func(dir string)) {
	t.Helper()
	Tool(t, "mount", "umount")
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: mounting through the kernel needs root")
	}
	dir := t.TempDir()
	if opts != "" {
		opts = "," + opts
	}
	out, err := exec.Command("env", "LC_ALL=C", "mount", "-t", "ext4", "-o", "loop"+opts, img, dir).CombinedOutput()
	if err != nil {
		// EFSBADCRC, EFSCORRUPTED and EIO in mount's words: the kernel knows how, and does not want this image.
		require.NotRegexp(t, "corrupt|needs cleaning|can't read superblock", string(out))
		t.Skipf("SKIPPED: the kernel does not mount an ext4 image over a loop device here: %s", out)
	}
	umount := func() {
		if dir == "" {
			return
		}
		require.NoError(t, loopmount.Unmount(dir))
		dir = ""
	}
	t.Cleanup(umount)
	fn(dir)
	umount()
}

// LetGo, first in a shell's script that has a mount namespace of its own, unmounts other tests' volumes there: the namespace's
// copies of their mounts would keep them in use. It prints nothing: a mount may go, with its directory, after it was listed.
const LetGo = "awk '$1 ~ \"^/dev/loop\" { print $2 }' /proc/mounts | xargs -r -n 1 umount -l 2>/dev/null || true\n"

// Image is an image file that is read and written directly.
type Image struct {
	*disk.Superblock
	t testing.TB
	f *os.File
}

// Open opens the image and decodes its superblock.
func Open(t testing.TB, img string) *Image {
	t.Helper()
	f, err := os.OpenFile(img, os.O_RDWR, 0)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	b := make([]byte, disk.SuperblockSize)
	_, err = f.ReadAt(b, disk.SuperblockOffset)
	require.NoError(t, err)
	s, err := disk.DecodeSuperblock(b)
	require.NoError(t, err)
	require.NoError(t, s.VerifyChecksum())
	return &Image{Superblock: s, t: t, f: f}
}

// Block reads a block.
func (m *Image) Block(n uint64) []byte {
	m.t.Helper()
	b := make([]byte, m.BlockSize())
	_, err := m.f.ReadAt(b, int64(n)*int64(len(b)))
	require.NoError(m.t, err)
	return b
}

// SetBlock writes a block.
func (m *Image) SetBlock(n uint64, b []byte) {
	m.t.Helper()
	_, err := m.f.WriteAt(b, int64(n)*int64(len(b)))
	require.NoError(m.t, err)
}

// Group reads and checks a group's descriptor.
func (m *Image) Group(g uint32) disk.GroupDesc {
	m.t.Helper()
	i, off := m.DescLocation(g)
	d, err := m.DecodeGroup(g, m.Block(m.DescBlock(i))[off:off+m.DescSize()])
	require.NoError(m.t, err)
	return d
}

// slot is the block that holds an inode, and where in it.
func (m *Image) slot(ino uint32) (block uint64, off int) {
	g, tb, off := m.InodeLocation(ino)
	return m.Group(g).InodeTable + uint64(tb), off
}

// Inode reads an inode and the bytes of its slot, and checks its checksum.
func (m *Image) Inode(ino uint32) (disk.Inode, []byte) {
	m.t.Helper()
	block, off := m.slot(ino)
	b := m.Block(block)[off : off+int(m.InodeSize)]
	n, err := m.DecodeInode(ino, b)
	require.NoError(m.t, err)
	require.NoError(m.t, m.VerifyInode(ino, &n, b))
	return n, b
}

// SetInode encodes an inode over the given bytes of its slot and writes it.
func (m *Image) SetInode(ino uint32, n *disk.Inode, slot []byte) {
	m.t.Helper()
	block, off := m.slot(ino)
	b := m.Block(block)
	copy(b[off:], slot)
	m.EncodeInode(ino, n, b[off:off+int(m.InodeSize)])
	m.SetBlock(block, b)
}

// Map lists the blocks of a file in order, 0 for holes, from its extent tree or its block pointers.
func (m *Image) Map(ino uint32, n *disk.Inode) []uint64 {
	m.t.Helper()
	out := make([]uint64, (n.Size+uint64(m.BlockSize())-1)/uint64(m.BlockSize()))
	if n.Flags&disk.FlExtents != 0 {
		m.extents(disk.InodeSeed(m.CsumSeed(), ino, n.Generation), n.Block[:], out)
		return out
	}
	at := 0
	for i := range 15 {
		at = m.pointers(uint64(le32(n.Block[4*i:])), max(0, i-11), at, out)
	}
	return out
}

func (m *Image) extents(seed uint32, node []byte, out []uint64) {
	m.t.Helper()
	h, err := disk.DecodeExtentHeader("extent tree", node)
	require.NoError(m.t, err)
	for i := range int(h.Entries) {
		if h.Depth > 0 {
			b := m.Block(disk.GetExtentIndex(node, i).Leaf)
			if m.MetadataCsum() {
				require.NoError(m.t, disk.VerifyExtentBlock("extent tree", seed, b))
			}
			m.extents(seed, b, out)
			continue
		}
		e := disk.GetExtent(node, i)
		for j := range e.Len {
			if l := int(e.Block + j); l < len(out) {
				out[l] = e.Start + uint64(j)
			}
		}
	}
}

func (m *Image) pointers(block uint64, level, at int, out []uint64) int {
	if level == 0 {
		if at < len(out) {
			out[at] = block
		}
		return at + 1
	}
	per := m.BlockSize() / 4
	if block == 0 || at >= len(out) {
		n := 1
		for range level {
			n *= per
		}
		return at + n
	}
	b := m.Block(block)
	for i := range per {
		at = m.pointers(uint64(le32(b[4*i:])), level-1, at, out)
	}
	return at
}

func le32(b []byte) uint32 {
	return uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
}

// Content is a file's bytes.
func (m *Image) Content(ino uint32) []byte {
	m.t.Helper()
	n, _ := m.Inode(ino)
	var out []byte
	for _, b := range m.Map(ino, &n) {
		if b == 0 {
			out = append(out, make([]byte, m.BlockSize())...)
		} else {
			out = append(out, m.Block(b)...)
		}
	}
	return out[:n.Size]
}
