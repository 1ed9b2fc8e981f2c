package ext4_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/blockdevtest"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// BenchmarkSmallFile makes files of 100 bytes in one directory as a program does that creates and writes them, and removes them, 2,000 at a
// time: what is left of those rows of `make bench` without FUSE.
func BenchmarkSmallFile(b *testing.B) {
	dev, err := blockdev.OpenFile(disktest.Make(b, "256M"), 512)
	require.NoError(b, err)
	v, err := ext4.Open(blockdevtest.Pinned(b, dev, 128<<20), ext4.Options{})
	require.NoError(b, err)
	root, err := v.Root()
	require.NoError(b, err)
	var names []string
	for i := range 2000 {
		names = append(names, fmt.Sprintf("file-%05d", i))
	}
	text := make([]byte, 100)
	create := func(name string) {
		_, err := root.Lookup(name)
		require.ErrorIs(b, err, ext4.ErrNotExist)
		f, err := root.Create(name, unix.S_IFREG|0o600, 0, 0, 0, 0)
		require.NoError(b, err)
		_, err = f.Store(0, ext4.Content{Bytes: text}, false, 0)
		require.NoError(b, err)
		f.Put()
	}
	remove := func(name string) { require.NoError(b, root.Unlink(name)) }
	for op, f := range map[string][2]func(string){"create": {create, remove}, "remove": {remove, create}} {
		b.Run(op, func(b *testing.B) {
			b.ReportAllocs()
			for done := 0; done < b.N; done += len(names) {
				part := names[:min(len(names), b.N-done)]
				b.StopTimer()
				if op == "remove" {
					for _, name := range part {
						create(name)
					}
				}
				b.StartTimer()
				for _, name := range part {
					f[0](name)
				}
				b.StopTimer()
				if op == "create" {
					for _, name := range part {
						remove(name)
					}
				}
			}
		})
	}
	root.Put()
	require.NoError(b, v.Close())
}
