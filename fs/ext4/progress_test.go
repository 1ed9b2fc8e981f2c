package ext4_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// TestProgress: who opens a volume that was not closed hears of recovery and of orphans, who closes it of metadata that goes to its place; the
// last word on each is that all is done.
func TestProgress(t *testing.T) {
	img := disktest.Make(t, "32M")
	v, done := open(t, img, ext4.Options{})
	root, err := v.Root()
	require.NoError(t, err)
	var held []*ext4.Inode
	for n := range 3 {
		f, err := root.Create(fmt.Sprint("f", n), 0o100600, 0, 0, 0, 0)
		require.NoError(t, err)
		_, err = f.Write(0, make([]byte, 64<<10))
		require.NoError(t, err)
		held = append(held, f)
	}
	for n := range held {
		require.NoError(t, root.Unlink(fmt.Sprint("f", n)))
	}
	require.NoError(t, v.Sync())
	bytes, err := os.ReadFile(img) // as a crash would leave it
	require.NoError(t, err)
	for _, f := range held {
		f.Put()
	}
	root.Put()
	done()

	crashed := filepath.Join(t.TempDir(), "crashed")
	require.NoError(t, os.WriteFile(crashed, bytes, 0o600))
	heard := map[string][]ext4.Progress{}
	_, done = open(t, crashed, ext4.Options{Progress: func(p ext4.Progress) { heard[string(p.Work)] = append(heard[string(p.Work)], p) }})
	done()
	require.Len(t, heard, 3)
	for work, all := range heard {
		for _, p := range all {
			require.LessOrEqual(t, p.Done, p.Total, work)
		}
		last := all[len(all)-1]
		require.Equal(t, last.Total, last.Done, work)
	}
	require.EqualValues(t, 3, heard["deletions and truncations of the last mount are finished"][2].Total)
	disktest.Fsck(t, crashed)
}
