package ext4_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
	"github.com/lanefs/lanefs/fs/ext4/internal/attrs"
	"github.com/lanefs/lanefs/fs/ext4/internal/names"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
)

// TestGrowthOfDirectoryUndone: each name of a directory is put in once in an operation that is undone, and then for good. Where the blocks are that the
// first one added is not known any more: they may be another file's by now.
func TestGrowthOfDirectoryUndone(t *testing.T) {
	// How often it grows depends on the hashes of its names.
	img := disktest.Make(t, "12M", "-b", "1024", "-E", "hash_seed=6f1c2d3e-4b5a-4978-8695-a4b3c2d1e0f0")
	v, done := open(t, img, ext4.Options{})
	root, err := v.Root()
	require.NoError(t, err)
	d, err := root.Mkdir("d", 0o755, 0, 0)
	require.NoError(t, err)
	live, undone, grew := d.Live(), errors.New("undone"), 0
	for k := range 300 {
		name := fmt.Sprintf("%060d", k)
		before := uint32(live.Disk.Size >> 10)
		err := v.Volume().Change(nil, func(o *volume.Op) error {
			o.Lock(live)
			return o.Do(attrs.CreateCredits, func() error {
				require.NoError(t, names.DirInsert(live, o, name, live.Ino(), unix.S_IFREG))
				_, _, err := names.DirLookup(live, name)
				require.NoError(t, err)
				for l := before; l < uint32(live.Disk.Size>>10); l++ {
					if live.DirMap.Get(l) != 0 {
						grew++
					}
				}
				return undone
			})
		})
		require.ErrorIs(t, err, undone)
		for l := range before + 5 {
			require.True(t, l < before || live.DirMap.Get(l) == 0, "block %d of %d", l, before)
		}
		_, err = d.Lookup(name)
		require.ErrorIs(t, err, ext4.ErrNotExist)
		require.NoError(t, put(d.Create(name, unix.S_IFREG, 0, 0, 0, 0)))
	}
	require.Greater(t, grew, 10)
	for k := range 300 {
		require.NoError(t, put(d.Lookup(fmt.Sprintf("%060d", k))))
	}
	d.Put()
	root.Put()
	done()
	disktest.Fsck(t, img)
}

// TestDirectoryOfBillions: a directory that says it has four billion blocks takes no memory for them when a name is looked for; nor does one whose
// tree has a block as far behind.
func TestDirectoryOfBillions(t *testing.T) {
	img := disktest.Make(t, "12M", "-b", "4096", "-O", "large_dir")
	v, done := open(t, img, ext4.Options{})
	root, err := v.Root()
	require.NoError(t, err)
	d, err := root.Mkdir("d", 0o755, 0, 0)
	require.NoError(t, err)
	require.NoError(t, put(d.Create("name", unix.S_IFREG, 0, 0, 0, 0)))
	d.Put()
	root.Put()
	done()
	disktest.Debugfs(t, img, "sif /d size 0xffffffe0000")
	v, done = open(t, img, ext4.Options{})
	root, err = v.Root()
	require.NoError(t, err)
	d, err = root.Lookup("d")
	require.NoError(t, err)
	require.Greater(t, d.Live().Disk.Size, uint64(1<<43))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	require.NoError(t, put(d.Lookup("name")))
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))

	var far volume.DirMap
	runtime.ReadMemStats(&before)
	for l := uint32(1); l != 0; l <<= 1 {
		far.Note(l, 7)
		require.True(t, far.Get(l) == 7 || l >= 1<<18 && far.Get(l) == 0, l)
		require.Zero(t, far.Get(l+1), l)
	}
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(2<<20))
	d.Put()
	root.Put()
	done()
}

// TestDirectoryOfOneBlock: a directory without an index whose three indirect blocks lead to one leaf, at each of a billion places. Whoever looks for a
// name that is not there holds the directory's lock meanwhile, and must not go through all of them.
func TestDirectoryOfOneBlock(t *testing.T) {
	for _, size := range []string{"1024", "4096"} {
		t.Run(size, func(t *testing.T) {
			img := disktest.Make(t, "12M", "-b", size, "-O", "^extent,^64bit,^metadata_csum,^dir_index,^flex_bg,large_dir")
			ino := disktest.FirstFile(t, img)
			disktest.Debugfs(t, img, "mkdir /d", "mkdir /other")
			m := disktest.Open(t, img)
			_, slot := m.Inode(ino)
			d, err := m.DecodeInode(ino, slot)
			require.NoError(t, err)
			bs := uint64(m.BlockSize())
			leaf := make([]byte, bs)
			binary.LittleEndian.PutUint16(leaf[4:], uint16(bs)) // one free record
			at := m.BlocksCount - 10
			m.SetBlock(at, leaf)
			point := func(i int, to uint64) { binary.LittleEndian.PutUint32(d.Block[4*i:], uint32(to)) }
			for i := 1; i < 12; i++ {
				point(i, at)
			}
			blocks, under := uint64(12), uint64(1)
			for i := range 3 {
				p := make([]byte, bs)
				for k := 0; k < len(p); k += 4 {
					binary.LittleEndian.PutUint32(p[k:], uint32(at))
				}
				at++
				m.SetBlock(at, p)
				point(12+i, at)
				under *= bs / 4
				blocks += under
			}
			d.Size = blocks * bs
			m.SetInode(ino, &d, slot)

			v, done := open(t, img, ext4.Options{})
			root, err := v.Root()
			require.NoError(t, err)
			dir, err := root.Lookup("d")
			require.NoError(t, err)
			require.EqualValues(t, d.Size, dir.Live().Disk.Size)
			_, err = dir.Lookup("none")
			require.ErrorContains(t, err, "two places")
			require.ErrorContains(t, dir.ReadDir(0, func(ext4.DirEntry) bool { return true }), "two places")
			require.Error(t, root.Rmdir("d"))
			require.Error(t, put(dir.Create("none", unix.S_IFREG, 0, 0, 0, 0)))
			require.NoError(t, put(root.Lookup("other")))
			dir.Put()
			root.Put()
			done()
		})
	}
}
