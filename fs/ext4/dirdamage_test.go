package ext4_test

import (
	"encoding/binary"
	"fmt"
	"os"
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

// TestDamagedIndex damages the index of a directory that the kernel made. Every name is found and listed all the same,
// nothing is changed there, and the rest of the volume goes on if it was asked to.
func TestDamagedIndex(t *testing.T) {
	const names = 2000
	name := func(k int) string { return fmt.Sprintf("%d-%s", k, strings.Repeat("n", k%150)) }
	le := binary.LittleEndian
	for _, tc := range []struct {
		name  string
		csum  bool
		spoil func(root, node []byte) // node is the first below the root
	}{
		{"root's checksum", true, func(root, _ []byte) { root[len(root)-1] ^= 1 }},
		{"node's checksum", true, func(_, node []byte) { node[len(node)-1] ^= 1 }},
		{"hash version", false, func(root, _ []byte) { root[0x1c] = 77 }},
		{"depth", false, func(root, _ []byte) { root[0x1e] = 9 }},
		{"root's limit", false, func(root, _ []byte) { le.PutUint16(root[0x20:], 3) }},
		{"block out of range", false, func(root, _ []byte) { le.PutUint32(root[0x24:], 1<<20) }},
		{"node is a leaf", false, func(_, node []byte) { clear(node[8:]) }},
		{"order", false, func(_, node []byte) { le.PutUint32(node[16+8:], 0xfffffff0) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			img := disktest.Make(t, "16M", "-b", "1024", "-N", "4000", "-O", map[bool]string{true: "metadata_csum", false: "^metadata_csum"}[tc.csum])
			var ino uint32
			disktest.Mount(t, img, "", func(dir string) {
				d := filepath.Join(dir, "d")
				require.NoError(t, os.Mkdir(d, 0o755))
				for k := range names {
					require.NoError(t, unix.Mknod(filepath.Join(d, name(k)), unix.S_IFREG|0o644, 0))
				}
				var st unix.Stat_t
				require.NoError(t, unix.Stat(d, &st))
				ino = uint32(st.Ino)
			})
			m := disktest.Open(t, img)
			n, _ := m.Inode(ino)
			require.NotZero(t, n.Flags&disk.FlIndex)
			at := m.Map(ino, &n)
			root := m.Block(at[0])
			require.EqualValues(t, 1, root[0x1e], "the index should have two levels")
			below := at[le.Uint32(root[0x24:])]
			node := m.Block(below)
			tc.spoil(root, node)
			m.SetBlock(at[0], root)
			m.SetBlock(below, node)

			dev, err := blockdev.OpenFile(img, 512)
			require.NoError(t, err)
			defer dev.Close()
			var log []string
			v, err := ext4.Open(dev, ext4.Options{Errors: ext4.ErrorsContinue, Log: disktest.Logger(func(line string) { log = append(log, line) })})
			require.NoError(t, err)
			top, err := v.Root()
			require.NoError(t, err)
			d, err := top.Lookup("d")
			require.NoError(t, err)
			require.Empty(t, log)
			for k := range names {
				i, err := d.Lookup(name(k))
				require.NoError(t, err, name(k))
				i.Put()
			}
			_, err = d.Lookup("never there")
			require.ErrorIs(t, err, ext4.ErrNotExist)
			up, err := d.Lookup("..")
			require.NoError(t, err)
			require.Equal(t, top.Ino(), up.Ino())
			up.Put()

			seen := map[string]int{}
			cookie, rest := uint64(0), true
			for rest { // a few at a time, as readdir(3) does
				rest = false
				k := 0
				require.NoError(t, d.ReadDir(cookie, func(e ext4.DirEntry) bool {
					if k++; k > 37 {
						return false
					}
					seen[e.Name]++
					cookie, rest = e.Cookie, true
					return true
				}))
			}
			require.Len(t, seen, names+2)
			for n, times := range seen {
				require.Equal(t, 1, times, n)
			}

			_, err = d.Create("new", unix.S_IFREG|0o644, 0, 0, 0, 0)
			require.ErrorIs(t, err, ext4.ErrCorrupt)
			require.ErrorIs(t, d.Unlink(name(7)), ext4.ErrCorrupt)
			require.ErrorIs(t, d.Rename(name(7), top, "moved", 0), ext4.ErrCorrupt)
			i, err := d.Lookup(name(7))
			require.NoError(t, err)
			require.ErrorIs(t, d.Link(i, "linked"), ext4.ErrCorrupt)
			i.Put()
			f, err := top.Create("elsewhere", unix.S_IFREG|0o644, 0, 0, 0, 0)
			require.NoError(t, err)
			f.Put()
			d.Put()
			top.Put()
			require.NoError(t, v.Close())
			require.Len(t, log, 1, "told once: %q", log)
			require.Contains(t, log[0], fmt.Sprintf("directory %d", ino))

			e2fsck(t, img, "-fy")
			disktest.Fsck(t, img)
			disktest.Mount(t, img, "ro", func(dir string) {
				list, err := os.ReadDir(filepath.Join(dir, "d"))
				require.NoError(t, err)
				require.Len(t, list, names)
				require.FileExists(t, filepath.Join(dir, "elsewhere"))
			})
		})
	}
}
