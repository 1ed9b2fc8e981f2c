package ext4_test

import (
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// TestStats holds the counters against the bytes that the device saw, mounting included, the superblock too.
func TestStats(t *testing.T) {
	for name, args := range map[string][]string{"journal": nil, "no journal": {"-O", "^has_journal"}, "1k": {"-b", "1024"}} {
		t.Run(name, func(t *testing.T) {
			img := disktest.Make(t, "32M", args...)
			for range 2 {
				dev, err := blockdev.OpenFile(img, 512)
				require.NoError(t, err)
				var read, written atomic.Int64
				dev.Observe(func(e blockdev.Event) {
					switch e.Op {
					case blockdev.OpRead:
						read.Add(int64(e.Len))
					case blockdev.OpWrite:
						written.Add(int64(e.Len))
					}
				})
				v, err := ext4.Open(dev, ext4.Options{Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
				require.NoError(t, err)
				require.NotZero(t, v.Stats().MetadataWritten, "mounting writes the superblock")
				root, err := v.Root()
				require.NoError(t, err)
				f, err := root.Create("f", 0o100644, 0, 0, 0, 0)
				if err == nil {
					_, err = f.Write(100, make([]byte, 300_000))
					require.NoError(t, err)
					data, err := f.Read(5000, 100_000)
					require.NoError(t, err)
					data.Release()
					f.Put()
				}
				root.Put()
				require.NoError(t, v.Sync())
				s := v.Stats()
				require.Equal(t, written.Load(), s.DataWritten+s.MetadataWritten+s.JournalWritten)
				require.Equal(t, read.Load(), s.DataRead+s.MetadataRead)
				require.NoError(t, v.Close())
				require.NoError(t, dev.Close())
			}
		})
	}
}
