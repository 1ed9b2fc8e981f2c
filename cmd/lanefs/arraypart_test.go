package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev/md/mdtest"
)

// TestArrayOnGPU: a partition of an array of two images, by lanes of a GPU, here the stand-in for ROCm: each member has lanes of its own, the
// members' data are in one pool, and a program has a file of the array as memory of the GPU, which follows the file.
func TestArrayOnGPU(t *testing.T) {
	needsSfdisk(t)
	p := newHIPPlace(t, "")
	a := mdtest.Array{Set: 4, Minor: 2, Chunk: 128, Features: 1 << 12, Layout: 2, Disks: 2}
	var img []string
	for role := range 2 {
		img = append(img, p.path(fmt.Sprint("img", role)))
		f, err := os.Create(img[role])
		require.NoError(t, err)
		require.NoError(t, f.Truncate(40<<20))
		require.NoError(t, a.Write(f, 40<<20, role))
		require.NoError(t, f.Close())
	}
	ab, file, dir := img[0]+","+img[1], p.path("raw"), p.mkdir("mnt")
	p.dirs = append(p.dirs, file)
	p.ok("raw", "--gpu", "host", ab, file)
	partitioned(t, file, "label: gpt\nsize=4M\nsize=64M\n")
	p.ok("umount", file)
	p.ok("raw", "--gpu", "host", ab+",p2", file)
	st, err := os.Stat(file)
	require.NoError(t, err)
	require.EqualValues(t, 64<<20, st.Size())
	tool(t, "mkfs.ext4", "-q", "-F", file)
	p.ok("umount", file)
	for device, want := range map[string]string{
		img[0] + ",p2": "p2 is a partition of an array, and one member is named",
		ab + ",p9":     "partition 9",
		ab:             "DEVICE,DEVICE,p1", // the array has a table, and no volume
	} {
		require.Contains(t, p.fails("mount", "--gpu", "host", device, dir), want)
	}

	p.ok("mount", "--gpu", "hip", "-o", "vram=16M,lanes=2", ab+",p2", dir)
	path := filepath.Join(dir, "weights")
	content := make([]byte, 6<<20+123)
	rand.NewChaCha8([32]byte{6}).Read(content)
	require.NoError(t, os.WriteFile(path, content, 0o644))
	holder := p.client(path)
	require.Contains(t, holder.ask("map"), fmt.Sprintf("%d bytes\n", len(content)))
	other := p.client(path)
	require.Equal(t, holder.line, other.ask("map"))
	require.Equal(t, "byte 77\n", other.ask("scribble"))
	require.Equal(t, "byte 77\n", holder.ask("look"))
	require.Equal(t, "ok\n", other.ask("ring"))
	other.end()
	holder.end()
	r, err := p.stat(dir)
	require.NoError(t, err)
	require.Equal(t, "hip", r.Runtime.Name)
	require.Len(t, r.Members, 2)
	read, written := map[int]uint64{}, map[int]uint64{}
	for _, q := range r.Queues {
		if !q.CPU {
			read[q.Member] += q.BytesRead
			written[q.Member] += q.BytesWritten
		}
	}
	for m := range 2 {
		require.Greater(t, read[m]+written[m], uint64(2<<20), "the GPU's lanes of member %d", m)
	}
	second := p.mkdir("second")
	if os.Geteuid() == 0 {
		require.Contains(t, p.fails("mount", "--gpu", "hip", "-o", "vram=16M,lanes=2", ab+",p1", second), "in use")
	}
	p.ok("umount", dir)

	p.ok("mount", "--gpu", "host", "-o", "ro", ab+",p2", dir)
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.True(t, bytes.Equal(ringed(content), got), "what came from device memory is on the medium")
	p.ok("umount", dir)
	p.ok("raw", "--gpu", "host", "-r", ab+",p2", file)
	fsck(t, file)
	p.ok("umount", file)
}
