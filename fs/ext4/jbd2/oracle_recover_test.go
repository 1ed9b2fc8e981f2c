package jbd2

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// dirtyImage lets the kernel fill a volume and copies it while its log is not written home.
func dirtyImage(t *testing.T, dir, options string, mib int, mkfsArgs ...string) string {
	t.Helper()
	img := filepath.Join(dir, "kernel.img")
	mkfs(t, img, mib, mkfsArgs...)
	mnt, umount := loopMount(t, img, options)
	magicBlock := make([]byte, 8192)
	be.PutUint32(magicBlock, magic)
	be.PutUint32(magicBlock[4096:], magic)
	sync := func(path string) {
		f, err := os.Open(path)
		require.NoError(t, err)
		require.NoError(t, f.Sync())
		require.NoError(t, f.Close())
	}
	for i := range 40 {
		d := filepath.Join(mnt, fmt.Sprintf("dir%d", i))
		require.NoError(t, os.Mkdir(d, 0o755))
		for k := range 20 {
			name := filepath.Join(d, fmt.Sprintf("a file with a long name to fill directories %d", k))
			require.NoError(t, os.WriteFile(name, magicBlock[:100*k+4096*(k%2)], 0o644))
		}
		if i%4 == 3 {
			// Frees directory blocks that are in the log already: revokes.
			require.NoError(t, os.RemoveAll(filepath.Join(mnt, fmt.Sprintf("dir%d", i-1))))
		}
		if i%3 == 0 {
			sync(d)
		}
		if i%10 == 9 {
			require.NoError(t, os.WriteFile(filepath.Join(mnt, "reuse"), bytes.Repeat([]byte("data"), 64<<10), 0o644))
			sync(filepath.Join(mnt, "reuse"))
		}
	}
	sync(mnt)
	// What comes last is not synced: it may be in the log or not, never half.
	require.NoError(t, os.WriteFile(filepath.Join(mnt, "unsynced"), []byte("x"), 0o644))
	dirty := filepath.Join(dir, "dirty.img")
	disktest.CopyLive(t, img, dirty)
	umount()
	return dirty
}

// TestRecoverKernel: what the kernel left in its log is brought home as e2fsck and the kernel bring it home.
func TestRecoverKernel(t *testing.T) {
	for _, tc := range []struct {
		name, options string
		mib           int
		args          []string
		features      Features
		sum1          bool
	}{
		{"4K", "", 32, []string{"-b", "4096", "-O", "64bit,metadata_csum"}, Feature64Bit | FeatureChecksumV3 | FeatureRevoke, false},
		{"1K", "", 24, []string{"-b", "1024", "-O", "64bit,metadata_csum"}, Feature64Bit | FeatureChecksumV3 | FeatureRevoke, false},
		{"2K", "", 24, []string{"-b", "2048", "-O", "^64bit,metadata_csum"}, FeatureChecksumV3 | FeatureRevoke, false},
		{"4K plain", "", 32, []string{"-b", "4096", "-O", "^64bit,^metadata_csum"}, FeatureRevoke, false},
		{"1K plain", "", 24, []string{"-b", "1024", "-O", "^64bit,^metadata_csum"}, FeatureRevoke, false},
		{"4K 64bit", "", 32, []string{"-b", "4096", "-O", "64bit,^metadata_csum"}, Feature64Bit | FeatureRevoke, false},
		{"1K checksum 1", "journal_checksum", 24, []string{"-b", "1024", "-O", "^64bit,^metadata_csum"}, FeatureRevoke, true},
		{"4K async", "journal_async_commit,data=writeback", 32, []string{"-b", "4096", "-O", "64bit,metadata_csum"}, Feature64Bit | FeatureChecksumV3 | FeatureAsyncCommit | FeatureRevoke, false},
		{"1K data=journal", "data=journal", 32, []string{"-b", "1024", "-O", "64bit,metadata_csum", "-J", "size=8"}, Feature64Bit | FeatureChecksumV3 | FeatureRevoke, false},
		{"4K data=journal", "data=journal", 48, []string{"-b", "4096", "-O", "^64bit,^metadata_csum"}, FeatureRevoke, false},
		{"ext3", "", 24, []string{"-b", "1024", "-O", "^extent,^64bit,^metadata_csum,^flex_bg"}, FeatureRevoke, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := oracle(t, true)
			dirty := dirtyImage(t, dir, tc.options, tc.mib, tc.args...)
			length, f := journalMap(t, dirty)
			super, _, _ := f(0)

			d, err := loadTestDevice(dirty)
			require.NoError(t, err)
			before := bytes.Clone(d.image)
			bs := blockSizeOf(d.image)
			c, err := NewCache(d, bs, CacheOptions{})
			require.NoError(t, err)
			l, err := OpenLog(c, length, f)
			require.NoError(t, err)
			info := l.Info()
			require.Equal(t, tc.features, info.Features|FeatureRevoke, "%v", info.Features)
			require.Equal(t, tc.sum1, info.Checksum1)
			r, err := l.Scan()
			require.NoError(t, err)
			require.True(t, r.Needed())
			require.NotZero(t, r.Blocks())
			require.Equal(t, before, d.image, "a scan writes nothing")

			// The overlay shows what Replay will write.
			shown := map[Block][]byte{}
			c.SetOverlay(r.Overlay())
			for b := range r.blocks {
				buf, err := c.Get(b)
				require.NoError(t, err)
				shown[b] = bytes.Clone(buf.Data())
				buf.Put()
			}
			c.SetOverlay(nil)
			c.Invalidate()
			require.NoError(t, r.Replay(nil))
			for b, p := range shown {
				require.True(t, bytes.Equal(p, d.durable[int(b)*bs:][:bs]), "block %d", b)
			}
			require.NoError(t, r.Finish())
			require.NoError(t, c.Close())
			t.Logf("%d transactions, %d revoke blocks, %d blocks, features %v", r.Transactions, r.RevokeBlocks, r.Blocks(), info.Features)

			fsck := filepath.Join(dir, "fsck.img")
			copyFile(t, dirty, fsck)
			command(t, "e2fsck", "-y", "-E", "journal_only", fsck)
			theirs, err := os.ReadFile(fsck)
			require.NoError(t, err)
			sameVolume(t, theirs, d.durable, super, "e2fsck")

			ours := filepath.Join(dir, "ours.img")
			img := bytes.Clone(d.durable)
			setRecover(img, false)
			require.NoError(t, os.WriteFile(ours, img, 0o600))
			command(t, "e2fsck", "-fn", ours)

			kernel := filepath.Join(dir, "recovered.img")
			copyFile(t, dirty, kernel)
			mnt, umount := loopMount(t, kernel, "")
			tree := command(t, "find", mnt, "-printf", "%P %s %m %i\n")
			umount()
			mnt, umount = loopMount(t, ours, "ro")
			require.Equal(t, tree, command(t, "find", mnt, "-printf", "%P %s %m %i\n"))
			umount()
		})
	}
}

// TestShutdownKernel: a volume whose kernel driver was shut down with and without a last flush of the log.
func TestShutdownKernel(t *testing.T) {
	const (
		iocShutdown = 0x8004587d // EXT4_IOC_SHUTDOWN
		logFlush    = 1
		noLogFlush  = 2
	)
	for name, flag := range map[string]int{"logflush": logFlush, "nologflush": noLogFlush} {
		t.Run(name, func(t *testing.T) {
			dir := oracle(t, true)
			img := filepath.Join(dir, "kernel.img")
			mkfs(t, img, 32, "-b", "4096", "-O", "64bit,metadata_csum,orphan_file")
			mnt, umount := loopMount(t, img, "")
			for i := range 50 {
				require.NoError(t, os.WriteFile(filepath.Join(mnt, fmt.Sprint(i)), make([]byte, i*1000), 0o644))
			}
			f, err := os.Open(mnt)
			require.NoError(t, err)
			require.NoError(t, f.Sync())
			require.NoError(t, os.WriteFile(filepath.Join(mnt, "late"), nil, 0o644))
			err = unix.IoctlSetPointerInt(int(f.Fd()), iocShutdown, flag)
			f.Close()
			require.NoError(t, err, "shutdown ioctl")
			umount()

			length, lf := journalMap(t, img)
			d, err := loadTestDevice(img)
			require.NoError(t, err)
			m := mountLog(t, d, 4096, length, lf, ChecksumV3, true, Config{})
			require.NotZero(t, m.r.Blocks())
			require.NoError(t, m.j.Close())
			require.NoError(t, m.c.Close())
			setRecover(d.durable, false)
			ours := filepath.Join(dir, "ours.img")
			require.NoError(t, os.WriteFile(ours, d.durable, 0o600))
			mnt, umount = loopMount(t, ours, "")
			list, err := os.ReadDir(mnt)
			require.NoError(t, err)
			late := 0
			if flag == logFlush {
				late = 1
			}
			require.Len(t, list, 50+1+late, "files and lost+found")
			umount()
			command(t, "e2fsck", "-fn", ours)
		})
	}
}
