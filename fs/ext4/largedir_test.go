package ext4_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// TestLargeDir fills a directory until its index has three levels, which only large_dir allows, and without that
// feature until it is full, as the kernel says it.
func TestLargeDir(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: 80,000 names take a while")
	}
	const names = 80_000
	name := func(k int) string { return fmt.Sprintf("%d-%s", k, strings.Repeat("x", 240)) }
	for _, large := range []bool{true, false} {
		t.Run(fmt.Sprint(large), func(t *testing.T) {
			args := []string{"-b", "1024", "-O", "^has_journal"}
			if large {
				args = []string{"-b", "1024", "-O", "large_dir,^has_journal"}
			}
			img := disktest.Make(t, "128M", args...)
			v, done := open(t, img, ext4.Options{})
			root, err := v.Root()
			require.NoError(t, err)
			dir, err := root.Mkdir("dir", 0o755, 0, 0)
			require.NoError(t, err)
			var target *ext4.Inode // names of few files, for the directory is what matters
			full := -1
			for k := range names {
				if k%60_000 == 0 {
					if target != nil {
						target.Put()
					}
					target = create(t, root, fmt.Sprintf("target%d", k))
				}
				if err = dir.Link(target, name(k)); err != nil {
					full = k
					break
				}
			}
			target.Put()
			if large {
				require.NoError(t, err, "name %d", full)
				full = names
			} else {
				require.ErrorIs(t, err, ext4.ErrNoSpace)
				require.Greater(t, full, 15_000)
			}
			for k := 0; k < full; k += 997 {
				i, err := dir.Lookup(name(k))
				require.NoError(t, err)
				i.Put()
			}
			for k := 0; k < full; k += 3 {
				require.NoError(t, dir.Unlink(name(k)))
			}
			require.Len(t, list(t, dir), full-(full+2)/3)
			dir.Put()
			root.Put()
			done()
			disktest.Fsck(t, img)
			disktest.Mount(t, img, "", func(mnt string) {
				d, err := os.Open(filepath.Join(mnt, "dir"))
				require.NoError(t, err)
				got, err := d.Readdirnames(-1)
				require.NoError(t, err)
				require.NoError(t, d.Close())
				require.Len(t, got, full-(full+2)/3)
				for k := 0; k < full; k += 997 {
					err := unix.Access(filepath.Join(mnt, "dir", name(k)), unix.F_OK)
					if k%3 == 0 {
						require.ErrorIs(t, err, unix.ENOENT)
					} else {
						require.NoError(t, err)
					}
				}
				require.NoError(t, os.WriteFile(filepath.Join(mnt, "dir", "kernel"), nil, 0o644))
			})
			disktest.Fsck(t, img)
		})
	}
}
