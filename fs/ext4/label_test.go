package ext4_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// TestSetLabel: the superblock and all its backups have the new name, as e2fsprogs reads them; one that is damaged stays so.
func TestSetLabel(t *testing.T) {
	disktest.Tool(t, "dumpe2fs")
	for name, c := range map[string]struct {
		size    string
		args    []string
		backups int
	}{
		"1k":               {"96M", []string{"-b", "1024"}, 5},
		"4k":               {"1G", []string{"-b", "4096"}, 4},
		"64k":              {"512M", []string{"-b", "65536", "-g", "512"}, 5},
		"sparse_super2":    {"96M", []string{"-b", "1024", "-O", "sparse_super2,^resize_inode"}, 2},
		"no sparse_super":  {"96M", []string{"-b", "1024", "-O", "^sparse_super,^resize_inode"}, 11},
		"no metadata_csum": {"96M", []string{"-b", "1024", "-O", "^metadata_csum"}, 5},
		"no journal":       {"96M", []string{"-b", "1024", "-O", "^has_journal"}, 5},
	} {
		t.Run(name, func(t *testing.T) {
			img := disktest.Make(t, c.size, append(c.args, "-L", "before")...)
			sb := disktest.Open(t, img).Superblock
			groups := sb.BackupGroups()
			require.Len(t, groups, c.backups)
			labels := func() (all []string) {
				for _, g := range append([]uint32{0}, groups...) {
					out, err := exec.Command("dumpe2fs", "-h", "-o", fmt.Sprintf("superblock=%d", max(sb.GroupFirstBlock(g), sb.SuperBlockNo())),
						"-o", fmt.Sprintf("blocksize=%d", sb.BlockSize()), img).Output()
					require.NoError(t, err)
					_, label, _ := strings.Cut(string(out), "Filesystem volume name:")
					label, _, _ = strings.Cut(label, "\n")
					all = append(all, strings.TrimSpace(label))
				}
				return all
			}
			set := func(label string) (log []string) {
				v, done := open(t, img, ext4.Options{Log: disktest.Logger(func(line string) { log = append(log, line) })})
				require.NoError(t, v.SetLabel(label))
				require.Equal(t, label, v.Label())
				require.Equal(t, label, disktest.Open(t, img).Superblock.Label(), "on the device before the volume is closed")
				done()
				return log
			}
			same := func(label string) (all []string) {
				for range c.backups + 1 {
					all = append(all, label)
				}
				return all
			}
			require.Equal(t, same("before"), labels())
			require.Empty(t, set("sixteen bytes ok"))
			require.Equal(t, same("sixteen bytes ok"), labels())
			disktest.Fsck(t, img)
			set("")
			require.Equal(t, same("<none>"), labels())

			if !sb.MetadataCsum() {
				return
			}
			m := disktest.Open(t, img)
			b := m.Block(sb.GroupFirstBlock(groups[0]))
			b[0x100] ^= 1
			m.SetBlock(sb.GroupFirstBlock(groups[0]), b)
			log := set("after")
			require.Len(t, log, 1)
			require.Contains(t, log[0], "a backup of the superblock is left as it is")
			require.Contains(t, log[0], fmt.Sprintf("group=%d ", groups[0]))
			require.Equal(t, b, disktest.Open(t, img).Block(sb.GroupFirstBlock(groups[0])))
			out, err := exec.Command("e2label", img).Output()
			require.NoError(t, err)
			require.Equal(t, "after\n", string(out))
		})
	}
}
