package alloc

import (
	"os"
	"testing"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
	"github.com/stretchr/testify/require"
)

// FuzzHostile overwrites parts of the metadata of volumes without checksums and works with what results: nothing may
// panic or run for ever, and never give out the superblock.
func FuzzHostile(f *testing.F) {
	var bases [][]byte
	for _, args := range [][]string{
		{"-b", "1024", "-g", "256", "-N", "256", "-O", "^metadata_csum,^uninit_bg,^has_journal,^resize_inode"},
		{"-b", "1024", "-g", "256", "-N", "256", "-O", "^metadata_csum,^has_journal,meta_bg,^resize_inode,^flex_bg"},
	} {
		b, err := os.ReadFile(mkfs(f, "2M", args...))
		require.NoError(f, err)
		bases = append(bases, b)
	}
	f.Add(false, []byte{0, 0x20, 0xff})
	f.Add(true, []byte{4, 0x0c, 0x00, 4, 0x12, 0x03})
	f.Fuzz(func(t *testing.T, second bool, patch []byte) {
		base := bases[0]
		if second {
			base = bases[1]
		}
		img := append([]byte(nil), base...)
		// Three bytes a patch: a 256-byte piece of the first 64 KiB from the superblock on, a place in it, a value.
		for ; len(patch) >= 3; patch = patch[3:] {
			img[disk.SuperblockOffset+int(patch[0])*256+int(patch[1])] = patch[2]
		}
		sb, err := disk.DecodeSuperblock(img[disk.SuperblockOffset:])
		if err != nil || sb.BlockSize() > 65536 {
			return
		}
		dev := blockdev.NewMem(int64(len(img)), 512)
		defer dev.Close()
		_, err = dev.File().WriteAt(img, 0)
		require.NoError(t, err)
		cache, err := jbd2.NewCache(dev, sb.BlockSize(), jbd2.CacheOptions{Limit: 1 << 20, Blocks: sb.BlocksCount})
		if err != nil {
			return
		}
		jnl, err := jbd2.OpenInPlace(cache, jbd2.Config{})
		require.NoError(t, err)
		a, err := New(sb, cache)
		if err == nil {
			misuse(t, a, jnl)
			a.Close()
		}
		require.NoError(t, jnl.Close())
		require.NoError(t, cache.Close(), "buffers leaked")
	})
}

func misuse(t *testing.T, a *Allocator, jnl *jbd2.Journal) {
	h, err := jnl.Begin(200)
	require.NoError(t, err)
	for i := range 12 {
		b, n, err := a.Alloc(h, disk.Block(i*170), 40, 1, UseNodes)
		if err == nil {
			require.True(t, a.Valid(b, n), "blocks %d+%d", b, n)
			if i%3 == 0 {
				require.NoError(t, a.Free(h, b, n))
			}
		}
		ino, err := a.AllocInode(h, uint32(i*20), i%2 == 0)
		if err == nil {
			require.GreaterOrEqual(t, ino, a.sb.FirstIno)
			if i%3 == 0 {
				_ = a.FreeInode(h, ino, i%2 == 0)
			}
		}
		_ = a.Free(h, disk.Block(i*100), 300)
		_ = a.FreeInode(h, uint32(i*17), false)
	}
	require.NoError(t, h.End())
	_ = jnl.Commit()
	_, _ = a.Trim(0, 1<<60, 1, func(disk.Block, uint32) error { return nil })
	_ = a.Overhead()
}
