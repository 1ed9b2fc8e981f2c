package ext4_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// The layouts of issue: block sizes, and each feature on and off.
var layouts = []struct {
	name string
	args []string
}{
	{"ext2", []string{"-t", "ext2"}},
	{"ext2 revision 0", []string{"-t", "ext2", "-r", "0", "-b", "1024"}},
	{"ext3", []string{"-t", "ext3"}},
	{"ext3 1k", []string{"-t", "ext3", "-b", "1024"}},
	{"no extents", []string{"-O", "^extent,^64bit"}},
	{"inline data", []string{"-O", "inline_data"}},
	{"inline data, large inodes, block maps", []string{"-O", "inline_data,^extent,^64bit", "-I", "1024", "-b", "2048", "-N", "8000"}},
	{"upstream default", []string{"-O", "metadata_csum_seed,orphan_file"}},
	{"1k", []string{"-b", "1024"}},
	{"2k", []string{"-b", "2048"}},
	{"4k no 64bit", []string{"-b", "4096", "-O", "^64bit"}},
	{"no metadata_csum", []string{"-O", "^metadata_csum"}},
	{"uninit_bg", []string{"-O", "^metadata_csum,uninit_bg"}},
	{"no dir_index", []string{"-O", "^dir_index"}},
	{"no flex_bg", []string{"-b", "1024", "-O", "^flex_bg"}},
	{"1k plain", []string{"-b", "1024", "-O", "^64bit,^metadata_csum,^dir_index,^flex_bg"}},
	{"128-byte inodes", []string{"-I", "128"}},
	{"no journal", []string{"-O", "^has_journal"}},
	{"meta_bg", []string{"-b", "1024", "-g", "1024", "-O", "meta_bg,^resize_inode"}},
	{"sparse_super2, large_dir", []string{"-O", "sparse_super2,large_dir,^resize_inode"}},
	{"no filetype", []string{"-O", "^filetype"}},
}

// TestReadKernel reads volumes that the kernel filled: in make test half of the layouts, and TestKernelReads the others.
func TestReadKernel(t *testing.T) {
	for k, l := range layouts {
		if !disktest.Turn(k, 2) {
			continue
		}
		t.Run(l.name, func(t *testing.T) {
			img := disktest.Make(t, "96M", l.args...)
			var want manifest
			disktest.Mount(t, img, "", func(dir string) {
				fillKernel(t, dir)
			})
			disktest.Mount(t, img, "ro", func(dir string) { want = kernelManifest(t, dir) }) // as it is on the medium
			v, done := open(t, img, ext4.Options{ReadOnly: true})
			requireSame(t, want, ourManifest(t, v))
			done()
			disktest.Fsck(t, img)
		})
	}
}

// fillKernel makes one of everything through the kernel.
func fillKernel(t *testing.T, dir string) {
	p := func(name string) string { return filepath.Join(dir, name) }
	rng := rand.New(rand.NewPCG(1, 2))
	for i, size := range []int{0, 1, 59, 60, 61, 1023, 1024, 1025, 4096, 5000, 100_000, 3_000_000} {
		require.NoError(t, os.WriteFile(p(fmt.Sprintf("file%d", i)), random(rng, size), os.FileMode(0o400+i)))
	}
	require.NoError(t, os.Chown(p("file3"), 70000, 1<<31))
	require.NoError(t, os.Chtimes(p("file4"), time.Unix(-5, 7), time.Unix(5_000_000_000, 123456789)))

	sparse, err := os.Create(p("sparse"))
	require.NoError(t, err)
	for _, off := range []int64{0, 5 << 20, 30<<20 + 777, 40 << 20} {
		_, err = sparse.WriteAt(random(rng, 10_000), off)
		require.NoError(t, err)
	}
	require.NoError(t, sparse.Truncate(40<<20+50_000))
	if err := unix.Fallocate(int(sparse.Fd()), unix.FALLOC_FL_KEEP_SIZE, 8<<20, 1<<20); err != unix.EOPNOTSUPP {
		require.NoError(t, err) // unwritten blocks, unless the volume has block maps
	}
	require.NoError(t, sparse.Close())

	// Every second block is a hole: an extent for each.
	many, err := os.Create(p("many"))
	require.NoError(t, err)
	for i := range 3000 {
		_, err = many.WriteAt(random(rng, 100), int64(i)*8192)
		require.NoError(t, err)
	}
	require.NoError(t, many.Close())

	require.NoError(t, os.Symlink("short", p("fast")))
	require.NoError(t, os.Symlink(strings.Repeat("x", 59), p("fast59")))
	require.NoError(t, os.Symlink(strings.Repeat("y", 60), p("slow60")))
	require.NoError(t, os.Symlink(strings.Repeat("z", 900), p("slow900")))
	require.NoError(t, os.Link(p("file1"), p("hard")))
	require.NoError(t, unix.Mknod(p("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	require.NoError(t, unix.Mknod(p("big"), unix.S_IFBLK|0o600, int(unix.Mkdev(300, 70000))))
	require.NoError(t, unix.Mkfifo(p("fifo"), 0o644))
	require.NoError(t, unix.Mknod(p("socket"), unix.S_IFSOCK|0o755, 0))

	require.NoError(t, os.MkdirAll(p("a/b/c/d"), 0o751))
	require.NoError(t, os.Mkdir(p("dir"), 0o1777))
	for i := range 3000 {
		require.NoError(t, os.WriteFile(p(fmt.Sprintf("dir/%d %s", i, strings.Repeat("n", i%200))), nil, 0o644))
	}
	for i := 0; i < 3000; i += 3 {
		require.NoError(t, os.Remove(p(fmt.Sprintf("dir/%d %s", i, strings.Repeat("n", i%200)))))
	}
}

func random(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// TestKernelReads has the kernel and e2fsck judge what this package writes.
func TestKernelReads(t *testing.T) {
	for k, l := range layouts {
		if !disktest.Turn(k+1, 2) {
			continue
		}
		t.Run(l.name, func(t *testing.T) {
			img := disktest.Make(t, "96M", l.args...)
			v, done := open(t, img, ext4.Options{})
			fillOurs(t, v)
			require.NoError(t, v.Sync())
			want := ourManifest(t, v)
			done()
			disktest.Fsck(t, img)
			disktest.Mount(t, img, "ro", func(dir string) {
				requireSame(t, want, kernelManifest(t, dir))
			})
			v, done = open(t, img, ext4.Options{})
			requireSame(t, want, ourManifest(t, v))
			emptyOurs(t, v)
			done()
			disktest.Fsck(t, img)
		})
	}
}

// fillOurs makes one of everything, and changes some of it again.
func fillOurs(t *testing.T, v *ext4.FS) {
	root, err := v.Root()
	require.NoError(t, err)
	defer root.Put()
	rng := rand.New(rand.NewPCG(3, 4))
	create := func(dir *ext4.Inode, name string, content []byte) *ext4.Inode {
		i, err := dir.Create(name, unix.S_IFREG|0o640, 1000, 70000, 0, 0)
		require.NoError(t, err, name)
		n, err := i.Write(0, content)
		require.NoError(t, err)
		require.Equal(t, len(content), n)
		return i
	}
	for k, size := range []int{0, 1, 59, 1023, 1024, 1025, 4096, 5000, 100_000, 3_000_000} {
		create(root, fmt.Sprintf("file%d", k), random(rng, size)).Put()
	}
	// Writes at odd places, over each other, against a copy in memory.
	model := make([]byte, 2_000_000)
	f := create(root, "odd", nil)
	size := 0
	for range 300 {
		off, n := rng.IntN(len(model)-70_000), 1+rng.IntN(70_000)
		b := random(rng, n)
		_, err := f.Write(int64(off), b)
		require.NoError(t, err)
		copy(model[off:], b)
		size = max(size, off+n)
		if rng.IntN(10) == 0 {
			size = rng.IntN(size)
			s := int64(size)
			_, err := f.SetAttr(ext4.SetAttr{Size: &s})
			require.NoError(t, err)
			clear(model[size:])
		}
	}
	requireContent(t, f, model[:size])
	f.Put()

	many := create(root, "many", nil)
	for k := range 3000 {
		_, err := many.Write(int64(k)*8192, random(rng, 100))
		require.NoError(t, err)
	}
	many.Put()
	far := create(root, "far", nil)
	_, err = far.Write(50<<20+5, []byte("far away"))
	require.NoError(t, err)
	far.Put()

	for _, l := range []struct{ name, target string }{{"fast", "short"}, {"fast59", strings.Repeat("x", 59)},
		{"slow60", strings.Repeat("y", 60)}, {"slow900", strings.Repeat("z", 900)}} {
		i, err := root.Symlink(l.name, l.target, 1, 2)
		require.NoError(t, err)
		i.Put()
	}
	for _, d := range []struct {
		name         string
		mode         uint32
		major, minor uint32
	}{{"null", unix.S_IFCHR | 0o666, 1, 3}, {"big", unix.S_IFBLK | 0o600, 300, 70000}, {"fifo", unix.S_IFIFO | 0o644, 0, 0},
		{"socket", unix.S_IFSOCK | 0o755, 0, 0}} {
		i, err := root.Create(d.name, d.mode, 0, 0, d.major, d.minor)
		require.NoError(t, err)
		i.Put()
	}
	i, err := root.Lookup("file1")
	require.NoError(t, err)
	require.NoError(t, root.Link(i, "hard"))
	mode, uid, gid := uint32(0o4755), uint32(1<<31), uint32(5)
	mtime := time.Unix(-77, 5)
	if v.Statfs().BlockSize > 0 { // 128-byte inodes keep seconds only
		mtime = time.Unix(77, 0)
	}
	_, err = i.SetAttr(ext4.SetAttr{Mode: &mode, UID: &uid, GID: &gid, Mtime: &mtime})
	require.NoError(t, err)
	i.Put()

	d, err := root.Mkdir("dir", 0o755, 3, 4)
	require.NoError(t, err)
	defer d.Put()
	for k := range 3000 {
		create(d, fmt.Sprintf("%d %s", k, strings.Repeat("n", k%200)), nil).Put()
	}
	for k := 0; k < 3000; k += 3 {
		require.NoError(t, d.Unlink(fmt.Sprintf("%d %s", k, strings.Repeat("n", k%200))))
	}
	up := root.Ref()
	for _, name := range []string{"a", "b", "c", "d"} {
		sub, err := up.Mkdir(name, 0o700, 0, 0)
		require.NoError(t, err)
		up.Put()
		up = sub
	}
	create(up, "deep", []byte("deep")).Put()
	require.NoError(t, up.Rename("deep", root, "shallow", 0))
	require.NoError(t, root.Rename("shallow", root, "file0", 0))
	require.NoError(t, root.Rename("a", d, "moved", 0))
	require.ErrorIs(t, d.Rename("moved", up, "loop", 0), ext4.ErrInvalid)
	require.NoError(t, root.Rename("file2", d, "moved", ext4.RenameExchange))
	require.ErrorIs(t, root.Rename("file3", d, "moved", ext4.RenameNoReplace), ext4.ErrExist)
	require.ErrorIs(t, root.Rmdir("file2"), ext4.ErrNotEmpty)
	up.Put()

	// Open without a name, and without ever having had one.
	gone := create(root, "gone", random(rng, 200_000))
	require.NoError(t, root.Unlink("gone"))
	_, err = gone.Write(100_000, []byte("still there"))
	require.NoError(t, err)
	gone.Put()
	tmp, err := root.Tmpfile(unix.S_IFREG|0o600, 0, 0)
	require.NoError(t, err)
	_, err = tmp.Write(0, []byte("tmp"))
	require.NoError(t, err)
	require.NoError(t, root.Link(tmp, "was tmp"))
	tmp.Put()

	pre := create(root, "pre", []byte("x"))
	large, err := root.Lookup("file8")
	require.NoError(t, err)
	mapped := large.Attr().Flags&disk.FlExtents == 0
	large.Put()
	if mapped {
		for _, mode := range []uint32{0, ext4.FallocKeepSize, ext4.FallocZeroRange} {
			require.ErrorIs(t, pre.Fallocate(mode, 0, 1<<20), ext4.ErrNotSup)
		}
	} else {
		require.NoError(t, pre.Fallocate(ext4.FallocKeepSize, 0, 1<<20))
	}
	for _, mode := range []uint32{unix.FALLOC_FL_COLLAPSE_RANGE, unix.FALLOC_FL_INSERT_RANGE} {
		require.ErrorIs(t, pre.Fallocate(mode, 0, 4096), ext4.ErrNotSup)
	}
	_, err = pre.Write(300_001, []byte("in the middle of what is unwritten"))
	require.NoError(t, err)
	require.NoError(t, pre.Fallocate(ext4.FallocPunchHole|ext4.FallocKeepSize, 4000, 100_000))
	if !mapped {
		require.NoError(t, pre.Fallocate(ext4.FallocZeroRange, 200_000, 150_000))
	}
	pre.Put()
}

// emptyOurs removes everything: what is left is what mkfs made.
func emptyOurs(t *testing.T, v *ext4.FS) {
	root, err := v.Root()
	require.NoError(t, err)
	defer root.Put()
	var rm func(dir *ext4.Inode)
	rm = func(dir *ext4.Inode) {
		var names []string
		require.NoError(t, dir.ReadDir(0, func(e ext4.DirEntry) bool {
			if e.Name != "." && e.Name != ".." && e.Name != "lost+found" {
				names = append(names, e.Name)
			}
			return true
		}))
		for _, n := range names {
			c, err := dir.Lookup(n)
			require.NoError(t, err)
			if c.Attr().Mode&unix.S_IFMT == unix.S_IFDIR {
				rm(c)
				require.NoError(t, dir.Rmdir(n))
			} else {
				require.NoError(t, dir.Unlink(n))
			}
			c.Put()
		}
	}
	rm(root)
}

func requireContent(t *testing.T, f *ext4.Inode, want []byte) {
	require.EqualValues(t, len(want), f.Attr().Size)
	for off := 0; off < len(want); off += 1 << 20 {
		d, err := f.Read(int64(off), 1<<20)
		require.NoError(t, err)
		end := min(off+1<<20, len(want))
		if !bytes.Equal(want[off:end], d.Bytes()) {
			t.Fatalf("content differs in [%d, %d)", off, end)
		}
		d.Release()
	}
}
