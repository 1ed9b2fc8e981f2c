package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestSplitDevice(t *testing.T) {
	img := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(img, nil, 0o600))
	require.NoError(t, os.WriteFile(img+"-part7", nil, 0o600))
	for arg, want := range map[string]where{
		"0000:04:00.0":         {Device: "0000:04:00.0"},
		"0000:04:00.0/3":       {Device: "0000:04:00.0", NSID: 3},
		"0000:04:00.0-part2":   {Device: "0000:04:00.0", Part: 2},
		"04:00.0/1-part12":     {Device: "04:00.0", NSID: 1, Part: 12},
		img:                    {Device: img},
		img + "-part2":         {Device: img, Part: 2},
		img + "-part7":         {Device: img + "-part7"}, // a file of that name is that file
		"/nowhere/image-part2": {Device: "/nowhere/image-part2"},
		"/dev/null-part1":      {Device: "/dev/null-part1"}, // no regular file
		img + "-part0":         {Device: img + "-part0"},
		"LABEL=some-part1":     {Device: "LABEL=some-part1"},
		"0000:04:00.0/0":       {Device: "0000:04:00.0/0"},
	} {
		got, err := splitDevice(arg)
		require.NoError(t, err)
		require.Equal(t, want, got, arg)
	}
}

// TestPartition: a partition of an image, made by sfdisk, is formatted, mounted and checked; the kernel finds the same volume where it sees
// the partition.
func TestPartition(t *testing.T) {
	needsSfdisk(t)
	p := newPlace(t)
	img := p.plain("disk", 96)
	partitioned(t, img, "label: gpt\nsize=16M\nsize=64M\n")

	file, dir := p.path("raw"), p.mkdir("mnt")
	p.dirs = append(p.dirs, file)
	p.ok("raw", "--gpu", "host", img+"-part2", file)
	st, err := os.Stat(file)
	require.NoError(t, err)
	require.EqualValues(t, 64<<20, st.Size())
	tool(t, "mkfs.ext4", "-q", "-F", file)
	require.Contains(t, p.fails("mount", "--gpu", "host", img+"-part1", dir), "in use")
	p.ok("umount", file)

	p.ok("mount", "--gpu", "host", img+"-part2", dir)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), []byte("in the partition"), 0o600))
	table, err := os.ReadFile("/proc/mounts")
	require.NoError(t, err)
	require.Contains(t, string(table), img+"-part2 "+dir+" fuse.lanefs", "or mount -a, which compares that with fstab, mounts it again")
	if os.Geteuid() == 0 {
		p.ok("mount", "--gpu", "host", img+"-part2", p.mkdir("twice"))
		require.NoError(t, unix.Unmount(p.path("twice"), 0))
	}
	require.Contains(t, p.fails("check", img), "in use by the LaneFS mount of \""+img+"-part2\" at \""+dir+"\"")
	require.Contains(t, p.fails("mount", "--gpu", "host", img+"-part1", p.mkdir("other")), "another part of it is mounted")
	p.ok("umount", dir)
	require.Contains(t, p.ok("check", img+"-part2"), "mounts it read-write")
	require.Contains(t, p.fails("mount", "--gpu", "host", img+"-part3", dir), "there is no partition 3; name one of those there are: 1, 2")

	said := p.ok("identify", img+"-part2")
	require.Regexp(t, `partition +2\n +offset, size +17825792, 67108864 bytes`, said)
	require.NotContains(t, p.ok("identify", img), "partition")
	require.Contains(t, p.fails("identify", img+"-part3"), "there is no partition 3; name one of those there are: 1, 2")

	dev := loopOver(t, img, "-P")
	showParts(t, dev, dev+"p2")
	fsck(t, dev+"p2")
	require.Contains(t, tool(t, "debugfs", "-R", "cat file", dev+"p2"), "in the partition")
}

// TestRefusedPartition: beside a partition that leaves the disk the others are used, and whoever asks for it, by its number or PARTUUID, hears what is wrong.
func TestRefusedPartition(t *testing.T) {
	needsSfdisk(t)
	p := newPlace(t)
	img := p.plain("disk", 40)
	partitioned(t, img, "label: dos\nlabel-id: 0x1234abcd\nstart=2048, size=32768\nstart=40960, size=8192\n")
	tool(t, "mkfs.ext4", "-q", "-F", "-E", "offset=1048576", img, "16M")
	require.NoError(t, os.Truncate(img, 22<<20))
	require.Contains(t, p.ok("check", img+"-part1"), "mounts it read-write")
	const why = "partition 2 cannot be used: partition 2 has the blocks 40960 to 49151, and may have 1 to 45055"
	for _, command := range []string{"check", "identify", "bench"} {
		require.Contains(t, p.fails(command, img+"-part2"), why)
	}
	all, err := tagsOf(img)
	require.NoError(t, err)
	w, ok, err := choose(all, "PARTUUID", "1234ABCD-01")
	require.NoError(t, err)
	require.True(t, ok && w == where{Device: img, Part: 1}, "%v", w)
	_, _, err = choose(all, "PARTUUID", "1234ABCD-02")
	require.ErrorContains(t, err, "PARTUUID=1234abcd-02 is "+img+"-part2, which cannot be used: partition 2 has the blocks 40960 to 49151")
}
