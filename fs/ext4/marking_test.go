package ext4_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// TestMarkBeforeAnswer has a flush fail. After the error the power may be cut at once: by then the superblock of the journal says
// that there was an error, since recovery may write an older superblock of the volume over the mark in that one.
func TestMarkBeforeAnswer(t *testing.T) {
	img := disktest.Make(t, "16M", "-b", "1024")
	dev, err := blockdev.OpenFile(img, 512)
	require.NoError(t, err)
	defer dev.Close()
	v, err := ext4.Open(dev, ext4.Options{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), CommitInterval: time.Hour})
	require.NoError(t, err)
	root, err := v.Root()
	require.NoError(t, err)
	f, err := root.Create("f", unix.S_IFREG|0o600, 0, 0, 0, 0)
	require.NoError(t, err)
	require.NoError(t, f.Fsync(false))
	disk := disktest.Open(t, img)
	ino, _ := disk.Inode(disk.JournalInum)
	journal := blockdev.Bytes(disk.Map(disk.JournalInum, &ino)[0]) * 1024

	remove := dev.Inject(blockdev.Fault{Op: blockdev.OpFlush, Times: 1})
	defer remove()
	held, release := dev.Hold(blockdev.Fault{Op: blockdev.OpWrite, Off: journal, Len: 1024})
	defer release()
	told := make(chan error, 1)
	go func() { told <- f.Fsync(true) }()
	select {
	case <-held:
	case err := <-told:
		require.FailNow(t, "the answer came before the mark was written", "%v", err)
	case <-time.After(2 * time.Minute):
		require.FailNow(t, "nothing is marked")
	}
	select {
	case err := <-told:
		require.FailNow(t, "the answer came before the mark was on the medium", "%v", err)
	case <-time.After(100 * time.Millisecond):
	}
	release()
	require.Error(t, <-told)
	f.Put()
	root.Put()
	require.Error(t, v.Close())
}
