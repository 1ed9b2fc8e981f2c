package ext4_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// TestMarkStays has the device refuse one write of a commit, after another that went well: the log has a superblock that is older
// than the mark of the error. Recovery must not write that over it, and the volume stays read-only, mount after mount, until e2fsck
// has seen it.
func TestMarkStays(t *testing.T) {
	for k := range 8 {
		t.Run(fmt.Sprintf("write %d", k), func(t *testing.T) {
			img := disktest.Make(t, "16M", "-O", "metadata_csum_seed,orphan_file")
			dev, err := blockdev.OpenFile(img, 512)
			require.NoError(t, err)
			v, err := ext4.Open(dev, ext4.Options{CommitInterval: time.Hour})
			require.NoError(t, err)
			root, err := v.Root()
			require.NoError(t, err)
			for _, name := range []string{"a", "b"} {
				create(t, root, name).Put()
				require.NoError(t, v.Sync())
			}
			heal := dev.Inject(blockdev.Fault{Op: blockdev.OpWrite, Skip: k, Times: 1})
			for n := 0; err == nil && n < 20; n++ {
				if err = put(root.Create(fmt.Sprint("c", n), unix.S_IFREG, 0, 0, 0, 0)); err == nil {
					err = v.Sync()
				}
			}
			require.ErrorIs(t, err, blockdev.ErrFault)
			heal()
			require.True(t, v.ReadOnly())
			root.Put()
			require.ErrorIs(t, v.Close(), blockdev.ErrFault)
			require.NoError(t, dev.Close())
			requireMarked(t, img)

			for range 3 {
				for _, opt := range []ext4.Options{{ReadOnly: true}, {}} {
					var said []string
					opt.Log = disktest.Logger(func(line string) { said = append(said, line) })
					v, done := open(t, img, opt)
					require.True(t, v.ReadOnly())
					require.Equal(t, ext4.ReadOnly, v.Inspect().Mount)
					if !opt.ReadOnly {
						require.Contains(t, strings.Join(said, "\n"), "run e2fsck")
					}
					done()
					requireMarked(t, img)
				}
			}
			disktest.Mount(t, img, "", func(string) {})
			requireMarked(t, img)
			out, _ := exec.Command("e2fsck", "-fy", img).CombinedOutput()
			t.Log(string(out))
			disktest.Fsck(t, img)
			v, done := open(t, img, ext4.Options{})
			require.False(t, v.ReadOnly())
			done()
		})
	}
}

// TestSizeTooLarge gives a file a size that no file can have: what is past the largest file is not read, and nothing else is shown
// in its place.
func TestSizeTooLarge(t *testing.T) {
	img := disktest.Make(t, "16M", "-b", "1024")
	v, done := open(t, img, ext4.Options{})
	root, err := v.Root()
	require.NoError(t, err)
	f := create(t, root, "f")
	content := []byte(strings.Repeat("first block ", 100))
	_, err = f.Write(0, content)
	require.NoError(t, err)
	ino := f.Ino()
	f.Put()
	root.Put()
	done()
	const most = int64(0xffffffff) << 10
	for _, size := range []int64{most + 1, most + 1024, 1<<42 + 600, 1 << 43, 1 << 60} {
		m := disktest.Open(t, img)
		d, slot := m.Inode(ino)
		d.Size = uint64(size)
		m.SetInode(ino, &d, slot)

		v, done := open(t, img, ext4.Options{})
		root, err := v.Root()
		require.NoError(t, err)
		f, err := root.Lookup("f")
		require.NoError(t, err)
		for _, off := range []int64{most, most + 1, 1 << 42, 1<<42 + 100, max(most, size-700), size - 1} {
			d, err := f.Read(off, 4096)
			require.NoError(t, err)
			require.Empty(t, d.Bytes(), "size %d, read at %d", size, off)
			d.Release()
			ts := []ext4.Transfer{{Off: off, N: 4096, Mem: nil}}
			f.ReadInto(ts)
			require.NoError(t, ts[0].Err)
			require.Zero(t, ts[0].Done)
			if off < size {
				_, err = f.Seek(off, ext4.SeekData)
				require.ErrorIs(t, err, ext4.ErrNoData)
			}
		}
		d2, err := f.Read(most-2048, 8192)
		require.NoError(t, err)
		require.Equal(t, make([]byte, 2048), d2.Bytes(), "up to the largest file, a hole")
		d2.Release()
		off, err := f.Seek(0, ext4.SeekHole)
		require.NoError(t, err)
		require.EqualValues(t, 2048, off)
		require.NoError(t, resize(f, 1100))
		f.Put()
		root.Put()
		done()
		disktest.Fsck(t, img)
	}
}
