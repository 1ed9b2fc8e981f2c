package ext4_test

import (
	"fmt"
	"log/slog"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// damagedInode makes an image with a file "good" and a file "bad" whose inode fails its checksum.
func damagedInode(t *testing.T) (img string, ino uint32) {
	img = disktest.Make(t, "16M")
	disktest.Debugfs(t, img, "write /dev/null good", "write /dev/null bad")
	out := disktest.Debugfs(t, img, "stat bad")
	_, err := fmt.Sscanf(out[strings.Index(out, "Inode:"):], "Inode: %d", &ino)
	require.NoError(t, err, out)
	m := disktest.Open(t, img)
	group, table, off := m.InodeLocation(ino)
	block := m.Group(group).InodeTable + uint64(table)
	b := m.Block(block)
	b[off+0x10] ^= 0xff
	m.SetBlock(block, b)
	return img, ino
}

// requireMarked wants e2fsprogs to see that the volume has met an error.
func requireMarked(t *testing.T, img string) {
	t.Helper()
	out := requireCounted(t, img, 1)
	require.Regexp(t, `Filesystem state: .*with errors`, out)
}

// requireCounted wants e2fsprogs to see how many errors the volume has met. It returns what dumpe2fs says.
func requireCounted(t *testing.T, img string, n int) string {
	t.Helper()
	out := requireAnyCounted(t, img)
	require.Regexp(t, fmt.Sprintf(`FS Error count: +%d\n`, n), out)
	return out
}

// requireAnyCounted wants e2fsprogs to see that the volume has met errors. It returns what dumpe2fs says.
func requireAnyCounted(t *testing.T, img string) string {
	t.Helper()
	out, err := exec.Command("dumpe2fs", "-h", img).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Regexp(t, `Last error function: +lanefs\n`, string(out))
	return string(out)
}

// TestErrorModes meets damage under each errors= option, and under what the superblock asks for.
func TestErrorModes(t *testing.T) {
	for _, c := range []struct {
		mode      ext4.ErrorMode
		s_errors  uint16
		goesOn    bool
		panics    bool
		mountSays string
	}{
		{ext4.ErrorsOfVolume, disk.ErrorsContinue, false, false, "read-only now"},
		{ext4.ErrorsOfVolume, disk.ErrorsRO, false, false, "read-only now"},
		{ext4.ErrorsOfVolume, disk.ErrorsPanic, false, true, "read-only now"},
		{ext4.ErrorsContinue, disk.ErrorsPanic, true, false, "errors=continue"},
		{ext4.ErrorsReadOnly, disk.ErrorsPanic, false, false, "read-only now"},
		{ext4.ErrorsPanic, disk.ErrorsRO, false, true, "read-only now"},
	} {
		t.Run(fmt.Sprintf("%d on %d", c.mode, c.s_errors), func(t *testing.T) {
			img, ino := damagedInode(t)
			patchSuper(t, img, func(sb *disk.Superblock) { sb.Errors = c.s_errors })
			var mu sync.Mutex
			var said []string
			panicked := 0
			v, done := open(t, img, ext4.Options{Errors: c.mode, Panic: func(error) { panicked++ },
				Log: disktest.Logger(func(line string) {
					mu.Lock()
					defer mu.Unlock()
					said = append(said, line)
				})})
			root, err := v.Root()
			require.NoError(t, err)
			for range 2 {
				_, err = root.Lookup("bad")
				require.ErrorIs(t, err, ext4.ErrCorrupt)
			}
			require.Len(t, said, 1)
			require.Contains(t, said[0], c.mountSays)
			require.Equal(t, c.panics, panicked == 1, "%d", panicked)
			f, err := root.Create("new", unix.S_IFREG|0o644, 0, 0, 0, 0)
			if c.goesOn {
				require.NoError(t, err)
				f.Put()
			} else {
				require.ErrorIs(t, err, ext4.ErrReadOnly)
			}
			root.Put()
			done()
			n := 1 // as in the kernel, what comes after the volume has become read-only is not counted
			if c.goesOn {
				n = 2
			}
			out := requireCounted(t, img, n)
			require.Regexp(t, `Filesystem state: .*with errors`, out)
			require.Regexp(t, fmt.Sprintf(`First error inode #: +%d\n`, ino), out)
			require.Regexp(t, fmt.Sprintf(`Last error inode #: +%d\n`, ino), out)
		})
	}
}

// TestAbortIsMarked has a commit fail: the volume takes no more changes, and e2fsck and the next mount know why.
func TestAbortIsMarked(t *testing.T) {
	img := disktest.Make(t, "16M")
	dev, err := blockdev.OpenFile(img, 512)
	require.NoError(t, err)
	v, err := ext4.Open(dev, ext4.Options{Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	require.NoError(t, err)
	root, err := v.Root()
	require.NoError(t, err)
	remove := dev.Inject(blockdev.Fault{Op: blockdev.OpWrite, Times: 1})
	f, err := root.Create("f", unix.S_IFREG|0o644, 0, 0, 0, 0)
	require.NoError(t, err)
	require.Error(t, f.Fsync(false))
	remove()
	require.True(t, v.ReadOnly())
	require.ErrorIs(t, root.Unlink("f"), ext4.ErrReadOnly)
	f.Put()
	root.Put()
	require.Error(t, v.Close())
	require.NoError(t, dev.Close())
	requireMarked(t, img)

	v, done := open(t, img, ext4.Options{Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	require.True(t, v.ReadOnly(), "until e2fsck has looked")
	done()
	disktest.FsckAll(t, img)
	v, done = open(t, img, ext4.Options{Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	require.False(t, v.ReadOnly())
	done()
}
