package ext4_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

func inline(i *ext4.Inode) bool { return i.Attr().Flags&disk.FlInlineData != 0 }

// TestInlineFile grows a file out of its inode at the size that the kernel does, and takes its room with attributes.
func TestInlineFile(t *testing.T) {
	img := disktest.Make(t, "32M", "-O", "inline_data", "-I", "256")
	v, done := open(t, img, ext4.Options{})
	root, err := v.Root()
	require.NoError(t, err)
	const most = 128 // of inodes of 256 bytes, with 32 bytes of extra members
	content := bytes.Repeat([]byte("0123456789abcdef"), 300)
	free := v.Statfs().BlocksFree
	for _, n := range []int{1, 59, 60, 61, most - 1, most, most + 1, 4096, 4800} {
		f := create(t, root, fmt.Sprintf("size%d", n))
		_, err := f.Write(0, content[:n])
		require.NoError(t, err)
		require.Equal(t, n <= most, inline(f), "%d bytes", n)
		requireContent(t, f, content[:n])
		f.Put()

		f = create(t, root, fmt.Sprintf("append%d", n))
		for k := range n {
			_, err := f.Write(int64(k), content[k:k+1])
			require.NoError(t, err)
		}
		require.Equal(t, n <= most, inline(f), "%d bytes", n)
		requireContent(t, f, content[:n])
		for _, s := range []int64{int64(n) / 2, int64(n)} {
			_, err := f.SetAttr(ext4.SetAttr{Size: &s})
			require.NoError(t, err)
		}
		requireContent(t, f, append(append([]byte{}, content[:n/2]...), make([]byte, n-n/2)...))
		f.Put()
	}
	// Blocks of 1 KiB: 1 + 4 + 5 for those written at once, 1 + 2 + 3 for those cut to half and grown again.
	require.EqualValues(t, free-16, v.Statfs().BlocksFree)

	// An attribute that leaves too little.
	f := create(t, root, "crowded")
	require.NoError(t, f.Setxattr("user.large", bytes.Repeat([]byte("v"), 60), 0))
	_, err = f.Write(0, content[:50])
	require.NoError(t, err)
	require.False(t, inline(f))
	f.Put()
	f = create(t, root, "beside")
	require.NoError(t, f.Setxattr("user.a", []byte("b"), 0))
	_, err = f.Write(0, content[:80])
	require.NoError(t, err)
	require.True(t, inline(f))
	require.NoError(t, f.Setxattr("user.more", bytes.Repeat([]byte("m"), 200), 0)) // goes to a block
	require.True(t, inline(f))
	names, err := f.Listxattr()
	require.NoError(t, err)
	sort.Strings(names)
	require.Equal(t, []string{"user.a", "user.more"}, names)
	_, err = f.Getxattr("system.data")
	require.ErrorIs(t, err, ext4.ErrNotSup)
	_, err = f.Write(80, content[80:128])
	require.NoError(t, err)
	require.False(t, inline(f))
	requireContent(t, f, content[:128])
	require.NoError(t, f.Removexattr("user.a"))
	f.Put()
	link, err := root.Symlink("link", strings.Repeat("l", 100), 0, 0)
	require.NoError(t, err)
	link.Put()
	root.Put()
	tree := ourManifest(t, v)
	done()
	disktest.Fsck(t, img)
	disktest.Mount(t, img, "ro", func(dir string) {
		requireSame(t, tree, kernelManifest(t, dir))
		var b [300]byte
		n, err := unix.Getxattr(filepath.Join(dir, "beside"), "user.more", b[:])
		require.NoError(t, err)
		require.Equal(t, 200, n)
	})
}

// TestInlineOfBillions: a file that says it has more in its inode than that has room for is read with zeroes, and not written to.
func TestInlineOfBillions(t *testing.T) {
	for _, size := range []string{"0x10000", "0xfffffffff"} {
		img := disktest.Make(t, "12M", "-O", "inline_data", "-I", "256")
		v, done := open(t, img, ext4.Options{})
		root, err := v.Root()
		require.NoError(t, err)
		f := create(t, root, "f")
		_, err = f.Write(0, []byte("content"))
		require.NoError(t, err)
		require.True(t, inline(f))
		f.Put()
		root.Put()
		done()
		disktest.Debugfs(t, img, "sif /f size "+size)
		v, done = open(t, img, ext4.Options{})
		root, err = v.Root()
		require.NoError(t, err)
		f, err = root.Lookup("f")
		require.NoError(t, err)
		require.Greater(t, f.Attr().Size, int64(1<<15))
		d, err := f.Read(0, 100)
		require.NoError(t, err)
		require.Equal(t, append([]byte("content"), make([]byte, 93)...), d.Bytes())
		d.Release()
		_, err = f.Write(3, []byte("x"))
		require.ErrorIs(t, err, ext4.ErrCorrupt)
		f.Put()
		root.Put()
		done()
	}
}

// TestInlineRead reads what debugfs and the kernel put into inodes: links too, which are not made inline any more but by
// debugfs.
func TestInlineRead(t *testing.T) {
	img := disktest.Make(t, "16M", "-O", "inline_data", "-I", "256")
	target := strings.Repeat("x", 100)
	disktest.Debugfs(t, img, "symlink slow "+target, "symlink fast short")
	disktest.Mount(t, img, "", func(dir string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "f"), []byte("in the inode"), 0o644))
		require.NoError(t, os.Truncate(filepath.Join(dir, "f"), 70))
		require.NoError(t, os.Mkdir(filepath.Join(dir, "d"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "d/g"), nil, 0o644))
	})
	v, done := open(t, img, ext4.Options{})
	root, err := v.Root()
	require.NoError(t, err)
	i, err := root.Lookup("slow")
	require.NoError(t, err)
	require.True(t, inline(i))
	s, err := i.Readlink()
	require.NoError(t, err)
	require.Equal(t, target, s)
	i.Put()
	require.NoError(t, root.Unlink("slow"))
	root.Put()
	tree := ourManifest(t, v)
	done()
	disktest.Fsck(t, img)
	disktest.Mount(t, img, "ro", func(dir string) { requireSame(t, tree, kernelManifest(t, dir)) })
}

// TestInlineDirs changes small directories at random, and lists them in steps while they grow out of their inodes.
func TestInlineDirs(t *testing.T) {
	for _, l := range []struct {
		name string
		args []string
	}{
		{"hashed", []string{"-O", "inline_data", "-I", "512"}},
		{"linear", []string{"-O", "inline_data,^dir_index", "-I", "256", "-b", "1024"}},
	} {
		t.Run(l.name, func(t *testing.T) {
			img := disktest.Make(t, "32M", l.args...)
			v, done := open(t, img, ext4.Options{})
			root, err := v.Root()
			require.NoError(t, err)
			rng := rand.New(rand.NewPCG(5, 6))
			for d := range 20 {
				dir, err := root.Mkdir(fmt.Sprintf("dir%d", d), 0o755, 0, 0)
				require.NoError(t, err)
				require.True(t, inline(dir))
				changeDir(t, rng, root, dir, 6+d)
				dir.Put()
			}
			listWhileGrowing(t, root)
			removeAndReuse(t, root)
			root.Put()
			tree := ourManifest(t, v)
			done()
			disktest.Fsck(t, img)
			disktest.Mount(t, img, "", func(dir string) {
				requireSame(t, tree, kernelManifest(t, dir))
				// The kernel goes on where we stopped.
				for d := range 20 {
					p := filepath.Join(dir, fmt.Sprintf("dir%d", d))
					require.NoError(t, os.WriteFile(filepath.Join(p, "kernel"), nil, 0o644))
					require.NoError(t, os.RemoveAll(p))
				}
			})
			disktest.Fsck(t, img)
		})
	}
}

// changeDir makes and removes up to most names in dir, and compares with what should be there.
func changeDir(t *testing.T, rng *rand.Rand, root, dir *ext4.Inode, most int) {
	have := map[string]bool{}
	for step := range 60 {
		name := fmt.Sprintf("%d%s", rng.IntN(most), strings.Repeat("n", rng.IntN(3)*7))
		switch {
		case have[name] && rng.IntN(2) == 0:
			require.NoError(t, dir.Unlink(name))
			delete(have, name)
		case have[name]:
			to := fmt.Sprintf("renamed %d", step)
			require.NoError(t, dir.Rename(name, dir, to, 0))
			delete(have, name)
			have[to] = true
		case len(have) < most:
			create(t, dir, name).Put()
			have[name] = true
		default:
			create(t, root, "other").Put()
			for victim := range have {
				require.NoError(t, root.Rename("other", dir, victim, 0))
				break
			}
		}
	}
	got := map[string]bool{}
	for _, n := range list(t, dir) {
		got[n] = true
	}
	require.Equal(t, have, got)
	for n := range have {
		i, err := dir.Lookup(n)
		require.NoError(t, err)
		i.Put()
	}
	_, err := dir.Lookup("not there")
	require.ErrorIs(t, err, ext4.ErrNotExist)
}

// listWhileGrowing adds names between the steps of a listing: what was there from the start is seen once.
func listWhileGrowing(t *testing.T, root *ext4.Inode) {
	dir, err := root.Mkdir("growing", 0o755, 0, 0)
	require.NoError(t, err)
	defer dir.Put()
	for _, n := range []string{"a", "b", "c"} {
		create(t, dir, n).Put()
	}
	seen := map[string]int{}
	cookie, steps := uint64(0), 0
	for more := true; more; steps++ {
		more = false
		require.NoError(t, dir.ReadDir(cookie, func(e ext4.DirEntry) bool {
			if more {
				return false
			}
			seen[e.Name]++
			cookie, more = e.Cookie, true
			return true
		}))
		if steps < 10 {
			create(t, dir, fmt.Sprintf("added later %d %s", steps, strings.Repeat("x", 40))).Put()
		}
	}
	require.False(t, inline(dir))
	for _, n := range []string{".", "..", "a", "b", "c"} {
		require.Equal(t, 1, seen[n], n)
	}
}

// removeAndReuse moves directories about and removes them.
func removeAndReuse(t *testing.T, root *ext4.Inode) {
	a, err := root.Mkdir("a", 0o755, 0, 0)
	require.NoError(t, err)
	b, err := a.Mkdir("b", 0o755, 0, 0)
	require.NoError(t, err)
	require.ErrorIs(t, root.Rmdir("a"), ext4.ErrNotEmpty)
	require.NoError(t, a.Rename("b", root, "b", 0)) // ".." changes inside the inode
	up, err := b.Lookup("..")
	require.NoError(t, err)
	require.EqualValues(t, disk.InoRoot, up.Ino())
	up.Put()
	create(t, a, "x").Put()
	require.NoError(t, root.Rename("a", root, "b", ext4.RenameExchange))
	require.NoError(t, a.Unlink("x"))
	require.NoError(t, root.Rmdir("b"))
	_, err = a.Create("late", unix.S_IFREG|0o644, 0, 0, 0, 0)
	require.ErrorIs(t, err, ext4.ErrNotExist)
	a.Put()
	b.Put()
}

func create(t testing.TB, dir *ext4.Inode, name string) *ext4.Inode {
	t.Helper()
	i, err := dir.Create(name, unix.S_IFREG|0o644, 0, 0, 0, 0)
	require.NoError(t, err, name)
	return i
}

// list is the names in dir but for "." and "..".
func list(t testing.TB, dir *ext4.Inode) (names []string) {
	t.Helper()
	require.NoError(t, dir.ReadDir(0, func(e ext4.DirEntry) bool {
		if e.Name != "." && e.Name != ".." {
			names = append(names, e.Name)
		}
		return true
	}))
	return names
}
