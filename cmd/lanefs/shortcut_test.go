package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestShortcut: single short requests of an image take no rings, long ones do; with shortcut=off all do, and the bytes are the same.
func TestShortcut(t *testing.T) {
	p := newPlace(t)
	image, mnt := p.image("image", 64), p.mkdir("mnt")
	const short, long = 4096, 1 << 20
	b, err := unix.Mmap(-1, 0, long, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	defer unix.Munmap(b)
	// counted is what the lanes count of 50 reads and 50 writes.
	counted := func(n int) queueCounters {
		f, err := os.OpenFile(filepath.Join(mnt, "file"), os.O_RDWR|os.O_CREATE|unix.O_DIRECT, 0o644)
		require.NoError(t, err)
		defer f.Close()
		for i := range b {
			b[i] = byte(i >> 12)
		}
		_, err = f.WriteAt(b, 0)
		require.NoError(t, err)
		before, err := p.stat(mnt)
		require.NoError(t, err)
		for i := range 50 {
			off := int64(i * n % long)
			_, err := f.ReadAt(b[:n], off)
			require.NoError(t, err)
			require.Equal(t, byte(off>>12), b[0])
			_, err = f.WriteAt(b[:n], off)
			require.NoError(t, err)
		}
		after, err := p.stat(mnt)
		require.NoError(t, err)
		c := after.Total
		c.Commands -= before.Total.Commands
		c.Shortcuts -= before.Total.Shortcuts
		c.SQDoorbells -= before.Total.SQDoorbells
		return c
	}
	for _, options := range []string{"shortcut=on", "shortcut=off"} {
		p.ok("mount", "-o", options, image, mnt)
		c := counted(short)
		require.GreaterOrEqual(t, c.Commands, uint64(100))
		if options == "shortcut=on" {
			require.GreaterOrEqual(t, c.Shortcuts, uint64(100))
		} else {
			require.Zero(t, c.Shortcuts)
			require.GreaterOrEqual(t, c.SQDoorbells, uint64(100))
		}
		c = counted(long)
		require.GreaterOrEqual(t, c.Commands-c.Shortcuts, uint64(100), "long ones")
		require.GreaterOrEqual(t, c.SQDoorbells, uint64(100))
		p.ok("umount", mnt)
	}
	fsck(t, image)
}
