package ext4_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// failing opens an image on a device that can't read the given blocks until heal is called.
func failing(t *testing.T, img string, opt ext4.Options, blocks ...uint64) (v *ext4.FS, heal, done func()) {
	t.Helper()
	v, dev, done := openOn(t, img, opt)
	var remove []func()
	for _, b := range blocks {
		remove = append(remove, dev.Inject(blockdev.Fault{Op: blockdev.OpRead, Off: blockdev.Bytes(b) * blockdev.Bytes(v.BlockSize()), Len: 1}))
	}
	heal = func() {
		for _, r := range remove {
			r()
		}
	}
	return v, heal, done
}

// TestUnreadableModes reads an inode that the device cannot read, under each errors= option, and under what the superblock asks for. It is
// counted; it has a consequence only where that is asked for by a word of its own. When it can be read it is.
func TestUnreadableModes(t *testing.T) {
	for _, c := range []struct {
		mode           ext4.ErrorMode
		s_errors       uint16
		goesOn, panics bool
	}{
		{ext4.ErrorsOfVolume, disk.ErrorsContinue, true, false},
		{ext4.ErrorsOfVolume, disk.ErrorsRO, false, false},
		{ext4.ErrorsOfVolume, disk.ErrorsPanic, false, true},
		{ext4.ErrorsContinue, disk.ErrorsPanic, true, false},
		{ext4.ErrorsReadOnly, disk.ErrorsContinue, false, false},
		{ext4.ErrorsPanic, disk.ErrorsRO, false, true},
	} {
		t.Run(fmt.Sprintf("%d on %d", c.mode, c.s_errors), func(t *testing.T) {
			img := disktest.Make(t, "16M")
			first := disktest.FirstFile(t, img)
			var write []string
			const ino = 51 // the next file's inode is in the same block of the table
			for i := first; i <= ino; i++ {
				write = append(write, fmt.Sprintf("write /dev/null f%d", i))
			}
			disktest.Debugfs(t, img, write...)
			patchSuper(t, img, func(sb *disk.Superblock) { sb.Errors = c.s_errors })
			m := disktest.Open(t, img)
			group, table, _ := m.InodeLocation(ino)
			block := m.Group(group).InodeTable + uint64(table)
			panicked := 0
			v, heal, done := failing(t, img, ext4.Options{Errors: c.mode, Panic: func(error) { panicked++ }}, block)
			root, err := v.Root()
			require.NoError(t, err)
			for range 2 {
				_, err = root.Lookup("f51")
				require.ErrorIs(t, err, blockdev.ErrFault)
				require.NotErrorIs(t, err, ext4.ErrCorrupt)
			}
			require.Equal(t, c.panics, panicked == 1, "%d", panicked)
			_, err = root.Create("new", unix.S_IFREG|0o644, 0, 0, 0, 0)
			if !c.goesOn {
				require.ErrorIs(t, err, ext4.ErrReadOnly)
			}
			heal()
			f, err := root.Lookup("f51")
			require.NoError(t, err)
			f.Put()
			f, err = root.Create("later", unix.S_IFREG|0o644, 0, 0, 0, 0)
			if c.goesOn {
				require.NoError(t, err)
				f.Put()
			} else {
				require.ErrorIs(t, err, ext4.ErrReadOnly)
			}
			root.Put()
			done()
			if c.goesOn {
				out := requireCounted(t, img, 3) // of the two lookups, and of the creation, for which the block is read
				require.Regexp(t, fmt.Sprintf(`First error inode #: +%d\n`, ino), out)
				require.Regexp(t, fmt.Sprintf(`First error block #: +%d\n`, block), out)
				require.NotContains(t, out, "with errors", "nothing is wrong with the volume")
				disktest.Fsck(t, img)
				v, done := open(t, img, ext4.Options{})
				require.False(t, v.ReadOnly())
				done()
			} else {
				requireMarked(t, img)
			}
		})
	}
}

// TestUnreadableOwn: what is one file's alone has no consequence for others, whatever errors= says.
func TestUnreadableOwn(t *testing.T) {
	img := disktest.Make(t, "16M")
	ino := disktest.FirstFile(t, img)
	disktest.Debugfs(t, img, "symlink s "+strings.Repeat("s", 200))
	m := disktest.Open(t, img)
	n, _ := m.Inode(ino)
	v, _, done := failing(t, img, ext4.Options{Errors: ext4.ErrorsReadOnly}, m.Map(ino, &n)[0])
	root, err := v.Root()
	require.NoError(t, err)
	s, err := root.Lookup("s")
	require.NoError(t, err)
	_, err = s.Readlink()
	require.ErrorIs(t, err, blockdev.ErrFault)
	s.Put()
	f, err := root.Create("new", unix.S_IFREG|0o644, 0, 0, 0, 0)
	require.NoError(t, err)
	f.Put()
	root.Put()
	done()
	out := requireCounted(t, img, 1)
	require.Regexp(t, fmt.Sprintf(`First error inode #: +%d\n`, ino), out)
	require.NotContains(t, out, "with errors")
}

// TestGroupPassedOver: files are made and written when the bitmaps of a group cannot be read, or are damaged (errors=continue).
func TestGroupPassedOver(t *testing.T) {
	for _, damaged := range []bool{false, true} {
		t.Run(fmt.Sprintf("damaged: %v", damaged), func(t *testing.T) {
			img := disktest.Make(t, "32M", "-b", "1024", "-O", "^resize_inode")
			m := disktest.Open(t, img)
			opt := ext4.Options{}
			var blocks []uint64
			d := m.Group(0)
			blocks = append(blocks, d.BlockBitmap, d.InodeBitmap) // those of groups that were never used are not read
			if damaged {
				opt.Errors = ext4.ErrorsContinue
				for _, b := range blocks {
					bytes := m.Block(b)
					bytes[100] ^= 0xff
					m.SetBlock(b, bytes)
				}
				blocks = nil
			}
			v, heal, done := failing(t, img, opt, blocks...)
			root, err := v.Root()
			require.NoError(t, err)
			f, err := root.Create("f", unix.S_IFREG|0o644, 0, 0, 0, 0)
			require.NoError(t, err)
			require.Greater(t, f.Ino(), m.InodesPerGroup)
			n, err := f.Write(0, make([]byte, 1<<20))
			require.NoError(t, err)
			require.Equal(t, 1<<20, n)
			require.NoError(t, f.Fsync(false))
			// What is left is not enough. The error says why, and not that the volume is full.
			for off := int64(1 << 20); err == nil; off += 1 << 20 {
				_, err = f.Write(off, make([]byte, 1<<20))
			}
			require.NotErrorIs(t, err, ext4.ErrNoSpace)
			if damaged {
				require.ErrorIs(t, err, ext4.ErrCorrupt)
			} else {
				require.ErrorIs(t, err, blockdev.ErrFault)
			}
			f.Put()
			root.Put()
			heal()
			done()
			if damaged {
				out := requireAnyCounted(t, img)
				require.Contains(t, out, "with errors")
				return
			}
			require.NotContains(t, requireAnyCounted(t, img), "with errors")
			disktest.Fsck(t, img)
		})
	}
}

// TestPassedOverReadAgain: where no other group has anything, a bitmap that was passed over is asked for again at once.
func TestPassedOverReadAgain(t *testing.T) {
	img := disktest.Make(t, "8M")
	m := disktest.Open(t, img)
	d := m.Group(0)
	v, heal, done := failing(t, img, ext4.Options{}, d.InodeBitmap)
	root, err := v.Root()
	require.NoError(t, err)
	create := func() (*ext4.Inode, error) { return root.Create("f", unix.S_IFREG|0o644, 0, 0, 0, 0) }
	_, err = create()
	require.ErrorIs(t, err, blockdev.ErrFault)
	heal()
	f, err := create()
	require.NoError(t, err)
	f.Put()
	root.Put()
	done()

	v, heal, done = failing(t, img, ext4.Options{}, d.BlockBitmap)
	root, err = v.Root()
	require.NoError(t, err)
	f, err = root.Lookup("f")
	require.NoError(t, err)
	_, err = f.Write(0, []byte("data"))
	require.ErrorIs(t, err, blockdev.ErrFault)
	heal()
	_, err = f.Write(0, []byte("data"))
	require.NoError(t, err)
	require.NoError(t, f.Fsync(false))
	f.Put()
	root.Put()
	done()
	disktest.Fsck(t, img)
}
