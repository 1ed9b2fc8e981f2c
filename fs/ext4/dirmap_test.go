package ext4_test

import (
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
	img := disktest.Make(t, "12M", "-b", "1024")
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
