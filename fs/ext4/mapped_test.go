package ext4_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// TestMappedAndExtents writes a volume that was ext3 once: old files have block maps, new ones extents.
func TestMappedAndExtents(t *testing.T) {
	disktest.Tool(t, "tune2fs")
	img := disktest.Make(t, "64M", "-t", "ext3", "-b", "1024")
	old := make([]byte, 700_000)
	for k := range old {
		old[k] = byte(k * k >> 8)
	}
	disktest.Mount(t, img, "", func(dir string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "old"), old, 0o644))
		require.NoError(t, os.Mkdir(filepath.Join(dir, "olddir"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "olddir/f"), nil, 0o644))
	})
	out, err := exec.Command("tune2fs", "-O", "extent", img).CombinedOutput()
	require.NoError(t, err, "%s", out)

	v, done := open(t, img, ext4.Options{})
	root, err := v.Root()
	require.NoError(t, err)
	f, err := root.Lookup("old")
	require.NoError(t, err)
	require.Zero(t, f.Attr().Flags&disk.FlExtents)
	n, err := f.Write(650_000, old)
	require.NoError(t, err)
	require.Equal(t, len(old), n)
	want := append(old[:650_000:650_000], old...)
	requireContent(t, f, want)
	f.Put()
	d, err := root.Lookup("olddir")
	require.NoError(t, err)
	require.Zero(t, d.Attr().Flags&disk.FlExtents)
	for k := range 500 {
		i, err := d.Create(string(rune('a'+k%26))+string(rune('a'+k/26))+"xxxxxxxxxxxxxxxxx", unix.S_IFREG|0o644, 0, 0, 0, 0)
		require.NoError(t, err)
		require.NotZero(t, i.Attr().Flags&disk.FlExtents)
		i.Put()
	}
	d.Put()
	g, err := root.Create("new", unix.S_IFREG|0o644, 0, 0, 0, 0)
	require.NoError(t, err)
	_, err = g.Write(0, old)
	require.NoError(t, err)
	g.Put()
	root.Put()
	tree := ourManifest(t, v)
	done()
	disktest.Fsck(t, img)
	disktest.Mount(t, img, "ro", func(dir string) { requireSame(t, tree, kernelManifest(t, dir)) })
}

// TestMappedLimit writes up to the largest size of a file with a block map, and not past it.
func TestMappedLimit(t *testing.T) {
	img := disktest.Make(t, "32M", "-t", "ext3", "-b", "1024")
	v, done := open(t, img, ext4.Options{})
	free := v.Statfs().BlocksFree
	root, err := v.Root()
	require.NoError(t, err)
	defer func() { root.Put() }()
	f, err := root.Create("f", unix.S_IFREG|0o644, 0, 0, 0, 0)
	require.NoError(t, err)
	const limit = 16843020 << 10
	b := make([]byte, 5000)
	for k := range b {
		b[k] = byte(k)
	}
	n, err := f.Write(limit-3000, b)
	require.ErrorIs(t, err, ext4.ErrTooBig)
	require.Equal(t, 3000, n)
	n, err = f.Write(limit, b)
	require.ErrorIs(t, err, ext4.ErrTooBig)
	require.Zero(t, n)
	size := int64(limit + 1)
	_, err = f.SetAttr(ext4.SetAttr{Size: &size})
	require.ErrorIs(t, err, ext4.ErrTooBig)
	require.EqualValues(t, limit, f.Attr().Size)
	data, err := f.Read(limit-4000, 5000)
	require.NoError(t, err)
	require.Equal(t, append(make([]byte, 1000), b[:3000]...), data.Bytes())
	data.Release()
	off, err := f.Seek(0, ext4.SeekData)
	require.NoError(t, err)
	require.EqualValues(t, (limit-3000)&^1023, off)
	root.Put()
	f.Put()
	done()
	disktest.Fsck(t, img)
	disktest.Mount(t, img, "ro", func(dir string) {
		k, err := os.Open(filepath.Join(dir, "f"))
		require.NoError(t, err)
		defer k.Close()
		got := make([]byte, 3000)
		_, err = k.ReadAt(got, limit-3000)
		require.NoError(t, err)
		require.Equal(t, b[:3000], got)
	})
	v, _ = open(t, img, ext4.Options{})
	root, err = v.Root()
	require.NoError(t, err)
	require.NoError(t, root.Unlink("f"))
	require.NoError(t, v.Sync())
	require.Equal(t, free, v.Statfs().BlocksFree)
}
