package ext4_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// patchSuper changes the superblock of an image.
func patchSuper(t *testing.T, img string, f func(*disk.Superblock)) {
	t.Helper()
	file, err := os.OpenFile(img, os.O_RDWR, 0)
	require.NoError(t, err)
	defer file.Close()
	b := make([]byte, disk.SuperblockSize)
	_, err = file.ReadAt(b, disk.SuperblockOffset)
	require.NoError(t, err)
	sb, err := disk.DecodeSuperblock(b)
	require.NoError(t, err)
	f(sb)
	sb.Encode(b)
	_, err = file.WriteAt(b, disk.SuperblockOffset)
	require.NoError(t, err)
}

// TestRefusedFeatures: what could be read wrongly is not opened, and the feature is named.
func TestRefusedFeatures(t *testing.T) {
	img := disktest.Make(t, "16M")
	for _, c := range []struct {
		feature disk.Incompat
		name    string
	}{
		{disk.IncompatCompression, "compression"},
		{disk.IncompatJournalDev, "journal_dev"},
		{disk.IncompatMMP, "mmp"},
		{disk.IncompatDirData, "dirdata"},
		{disk.IncompatEncrypt, "encrypt"},
		{disk.IncompatCasefold, "casefold"},
		{0x20, "unknown feature 0x20"},
		{0x80000000, "unknown feature 0x80000000"},
		{disk.IncompatEncrypt | 0x40000, "encrypt, unknown feature 0x40000"},
	} {
		patchSuper(t, img, func(sb *disk.Superblock) { sb.FeatureIncompat |= c.feature })
		before, err := os.ReadFile(img)
		require.NoError(t, err)
		for _, ro := range []bool{false, true} {
			dev, err := blockdev.OpenFile(img, 512)
			require.NoError(t, err)
			_, err = ext4.Open(dev, ext4.Options{ReadOnly: ro})
			require.ErrorContains(t, err, "the feature "+c.name+",")
			require.NoError(t, dev.Close())
		}
		after, err := os.ReadFile(img)
		require.NoError(t, err)
		require.True(t, bytes.Equal(before, after), "refusing %s changed the volume", c.name)
		patchSuper(t, img, func(sb *disk.Superblock) { sb.FeatureIncompat &^= c.feature })
	}
	v, done := open(t, img, ext4.Options{})
	require.False(t, v.ReadOnly())
	done()
}

// TestReadOnlyFeatures: what could be written wrongly is read, and the feature is named.
func TestReadOnlyFeatures(t *testing.T) {
	for _, c := range []struct {
		name  string
		args  []string
		patch disk.ROCompat // for what mke2fs or the kernel do not make
	}{
		{"bigalloc", []string{"-O", "bigalloc"}, 0},
		{"bigalloc", []string{"-O", "bigalloc", "-b", "1024", "-C", "8192"}, 0},
		{"quota", []string{"-O", "quota"}, 0},
		{"verity", []string{"-O", "verity"}, 0},
		{"shared_blocks", nil, disk.ROCompatSharedBlocks},
		{"snapshot", nil, disk.ROCompatHasSnapshot},
		{"replica", nil, disk.ROCompatReplica},
		{"read-only", nil, disk.ROCompatReadonly},
		{"unknown feature 0x80000", nil, 0x80000},
	} {
		t.Run(c.name, func(t *testing.T) {
			img := disktest.Make(t, "64M", c.args...)
			content := filepath.Join(t.TempDir(), "content")
			require.NoError(t, os.WriteFile(content, bytes.Repeat([]byte("content"), 10_000), 0o644))
			disktest.Debugfs(t, img, "mkdir dir", "write "+content+" dir/f", "symlink l dir/f")
			if c.patch != 0 {
				patchSuper(t, img, func(sb *disk.Superblock) { sb.FeatureROCompat |= c.patch })
			}
			before, err := os.ReadFile(img)
			require.NoError(t, err)
			var said []string
			v, done := open(t, img, ext4.Options{Log: disktest.Logger(func(line string) { said = append(said, line) })})
			require.True(t, v.ReadOnly())
			require.Contains(t, strings.Join(said, "\n"), "feature="+c.name)
			root, err := v.Root()
			require.NoError(t, err)
			_, err = root.Create("f", unix.S_IFREG|0o644, 0, 0, 0, 0)
			require.ErrorIs(t, err, ext4.ErrReadOnly)
			require.ErrorIs(t, root.Rmdir("dir"), ext4.ErrReadOnly)
			dir, err := root.Lookup("dir")
			require.NoError(t, err)
			f, err := dir.Lookup("f")
			require.NoError(t, err)
			requireContent(t, f, bytes.Repeat([]byte("content"), 10_000))
			_, err = f.Write(0, []byte("x"))
			require.ErrorIs(t, err, ext4.ErrReadOnly)
			for _, i := range []*ext4.Inode{root, dir, f} {
				i.Put()
			}
			require.NoError(t, v.Sync())
			done()
			after, err := os.ReadFile(img)
			require.NoError(t, err)
			require.True(t, bytes.Equal(before, after), "the volume was changed")
		})
	}
}

// TestReadBigalloc reads what the kernel put on a volume with clusters.
func TestReadBigalloc(t *testing.T) {
	img := disktest.Make(t, "128M", "-O", "bigalloc", "-b", "1024", "-C", "16384")
	disktest.Mount(t, img, "", func(dir string) { fillKernel(t, dir) })
	var want manifest
	disktest.Mount(t, img, "ro", func(dir string) { want = kernelManifest(t, dir) })
	v, done := open(t, img, ext4.Options{})
	requireSame(t, want, ourManifest(t, v))
	var st unix.Statfs_t
	ours := v.Statfs()
	done()
	disktest.Mount(t, img, "ro", func(dir string) { require.NoError(t, unix.Statfs(dir, &st)) })
	require.Equal(t, st.Bfree, ours.BlocksFree)
	require.Equal(t, st.Ffree, ours.InodesFree)
}

// TestLargeBlocks writes volumes whose blocks are larger than a page, which many kernels do not mount: debugfs reads
// them.
func TestLargeBlocks(t *testing.T) {
	disktest.Tool(t, "debugfs", "diff")
	for k, bs := range []string{"8192", "16384", "32768", "65536"} {
		if !disktest.Turn(k, 2) {
			continue
		}
		t.Run(bs, func(t *testing.T) {
			img := disktest.Make(t, "256M", "-b", bs, "-O", "metadata_csum_seed,orphan_file")
			v, done := open(t, img, ext4.Options{})
			fillOurs(t, v)
			want := ourManifest(t, v)
			done()
			disktest.Fsck(t, img)
			dump := t.TempDir()
			disktest.Debugfs(t, img, "rdump / "+dump)
			require.NoError(t, filepath.Walk(dump, func(p string, fi os.FileInfo, err error) error {
				if err != nil || !fi.Mode().IsRegular() {
					return err
				}
				rel, _ := filepath.Rel(dump, p)
				b, err := os.ReadFile(p)
				require.NoError(t, err)
				require.Contains(t, want[rel], contentOf(b), rel)
				return nil
			}))
			v, done = open(t, img, ext4.Options{})
			requireSame(t, want, ourManifest(t, v))
			emptyOurs(t, v)
			done()
			disktest.Fsck(t, img)
		})
	}
}

// TestReadEAInode reads values that the kernel put into inodes of their own, and lets go of them.
func TestReadEAInode(t *testing.T) {
	img := disktest.Make(t, "32M", "-O", "ea_inode", "-b", "1024")
	values := map[string][]byte{}
	for _, n := range []int{10, 900, 2000, 4096, 60_000} {
		values[fmt.Sprintf("user.v%d", n)] = bytes.Repeat([]byte{byte(n)}, n)
	}
	disktest.Mount(t, img, "", func(dir string) {
		for _, name := range []string{"a", "b", "c", "d"} {
			p := filepath.Join(dir, name)
			require.NoError(t, os.WriteFile(p, nil, 0o644))
			for n, v := range values {
				if err := unix.Setxattr(p, n, v, 0); err != nil {
					t.Skipf("SKIPPED: the kernel stores no large attributes: %v", err)
				}
			}
		}
	})
	v, done := open(t, img, ext4.Options{})
	root, err := v.Root()
	require.NoError(t, err)
	get := func(name string) *ext4.Inode {
		i, err := root.Lookup(name)
		require.NoError(t, err)
		return i
	}
	a := get("a")
	for n, want := range values {
		got, err := a.Getxattr(n)
		require.NoError(t, err, n)
		require.Equal(t, want, got, n)
	}
	a.Put()
	// A removed, a replaced and a shared value; a file that goes with all of them.
	b := get("b")
	require.NoError(t, b.Removexattr("user.v60000"))
	require.NoError(t, b.Setxattr("user.v4096", []byte("short"), 0))
	require.NoError(t, b.Setxattr("user.other", []byte("one more"), 0))
	b.Put()
	require.NoError(t, root.Unlink("c"))
	root.Put()
	done()
	disktest.Fsck(t, img)
	disktest.Mount(t, img, "", func(dir string) {
		buf := make([]byte, 70_000)
		for n, want := range values {
			for _, file := range []string{"a", "d"} {
				k, err := unix.Getxattr(filepath.Join(dir, file), n, buf)
				require.NoError(t, err)
				require.True(t, bytes.Equal(want, buf[:k]))
			}
		}
		k, err := unix.Getxattr(filepath.Join(dir, "b"), "user.v4096", buf)
		require.NoError(t, err)
		require.Equal(t, "short", string(buf[:k]))
		_, err = unix.Getxattr(filepath.Join(dir, "b"), "user.v60000", buf)
		require.ErrorIs(t, err, unix.ENODATA)
		require.NoError(t, os.Remove(filepath.Join(dir, "a")))
		require.NoError(t, os.Remove(filepath.Join(dir, "d")))
		require.NoError(t, os.Remove(filepath.Join(dir, "b")))
	})
	disktest.Fsck(t, img)
}

// TestProjects: projects are kept, and inherited where the directory says so.
func TestProjects(t *testing.T) {
	img := disktest.Make(t, "16M", "-O", "project,^quota")
	disktest.Debugfs(t, img, "mkdir p", "set_inode_field p projid 4711", "set_inode_field p flags 0x20080000", "mkdir q",
		"set_inode_field q projid 7")
	v, done := open(t, img, ext4.Options{})
	require.False(t, v.ReadOnly())
	root, err := v.Root()
	require.NoError(t, err)
	for _, c := range []struct {
		dir    string
		projid uint32
	}{{"p", 4711}, {"q", 0}} {
		d, err := root.Lookup(c.dir)
		require.NoError(t, err)
		f := create(t, d, "f")
		require.Equal(t, c.projid, f.Attr().ProjID)
		sub, err := d.Mkdir("sub", 0o755, 0, 0)
		require.NoError(t, err)
		require.Equal(t, c.projid, sub.Attr().ProjID)
		require.Equal(t, c.projid != 0, sub.Attr().Flags&disk.FlProjinherit != 0)
		_, err = f.Write(0, []byte("content"))
		require.NoError(t, err)
		f.Put()
		sub.Put()
		d.Put()
	}
	// A file of another project does not get in, as link(2) and rename(2) say it.
	f := create(t, root, "outside")
	p, err := root.Lookup("p")
	require.NoError(t, err)
	require.ErrorIs(t, p.Link(f, "inside"), ext4.ErrCrossDevice)
	require.ErrorIs(t, root.Rename("outside", p, "inside", 0), ext4.ErrCrossDevice)
	require.NoError(t, p.Rename("f", root, "out", 0))
	f.Put()
	p.Put()
	root.Put()
	done()
	disktest.Fsck(t, img)
	out, err := exec.Command("debugfs", "-R", "stat p/sub", img).CombinedOutput()
	require.NoError(t, err)
	require.Contains(t, string(out), "Project:  4711")
}

// TestHurd: on a volume of the Hurd's, i_osd1 is the block of a translator, and e2fsck takes a version there for one.
func TestHurd(t *testing.T) {
	img := disktest.Make(t, "16M", "-o", "Hurd")
	v, done := open(t, img, ext4.Options{})
	require.False(t, v.ReadOnly())
	root, err := v.Root()
	require.NoError(t, err)
	f, err := root.Create("f", unix.S_IFREG|0o644, 70_000, 80_000, 0, 0)
	require.NoError(t, err)
	for i := range 50 {
		_, err = f.Write(int64(i)<<12, make([]byte, 4096))
		require.NoError(t, err)
	}
	f.Put()
	root.Put()
	done()
	disktest.Fsck(t, img)
	require.Regexp(t, `User: +70000 +Group: +80000`, disktest.Debugfs(t, img, "stat f"))
}
