package ext4_test

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// TestWriteError has the device refuse writes of file data: none of them may be reported as done, over blocks that are
// allocated already no less than over new ones.
func TestWriteError(t *testing.T) {
	dev, err := blockdev.OpenFile(disktest.Make(t, "16M"), 512)
	require.NoError(t, err)
	defer dev.Close()
	v, err := ext4.Open(dev, ext4.Options{Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	require.NoError(t, err)
	root, err := v.Root()
	require.NoError(t, err)
	f, err := root.Create("f", unix.S_IFREG|0o600, 0, 0, 0, 0)
	require.NoError(t, err)
	const size = 64 << 10
	_, err = f.Write(0, make([]byte, size))
	require.NoError(t, err)
	require.NoError(t, f.Fsync(false))
	for _, off := range []int64{0, 1, size, 4 * size} {
		remove := dev.Inject(blockdev.Fault{Op: blockdev.OpWrite, Times: 1})
		n, err := f.Write(off, make([]byte, size))
		require.ErrorIs(t, err, blockdev.ErrFault, "at %d", off)
		require.Zero(t, n, "at %d", off)
		remove()
	}
	f.Put()
	root.Put()
	require.NoError(t, v.Close())
}
