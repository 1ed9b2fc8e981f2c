package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestShown: names with control characters are quoted for people, and as they are in JSON.
func TestShown(t *testing.T) {
	for name, want := range map[string]string{"/mnt/Größe 中": "/mnt/Größe 中", `a\b "c"`: `a\b "c"`, "a\nb": `"a\nb"`, "a\x1b[2Jb": `"a\x1b[2Jb"`, "a\xffb": `"a\xffb"`, "a\u202eb": `"a\u202eb"`} {
		require.Equal(t, want, shown(name))
	}
	p := newPlace(t)
	img, mnt := p.image("image\x1b[1m", 32), p.mkdir("mnt\x1b[2J\nqueues")
	p.ok("mount", "--gpu", "host", img, mnt)
	r, err := p.stat(mnt)
	require.NoError(t, err)
	require.Equal(t, mnt, r.Dir)
	out, _, err := p.run("stat", mnt)
	require.NoError(t, err)
	require.NotContains(t, out, "\x1b")
	require.Contains(t, out, `mnt\x1b[2J\nqueues`)
	require.Contains(t, out, filepath.Base(strings.ReplaceAll(img, "\x1b", `\x1b`)))
	p.ok("umount", mnt)
}

// TestShownPartition: the name of a partition, which whoever wrote the disk chose, is a line of its own and nothing more.
func TestShownPartition(t *testing.T) {
	var b strings.Builder
	i := &identity{Partition: &partitionReport{Number: 1, Name: "a\x1b[2J\nnamespace  9"}}
	require.NoError(t, i.print(&b))
	require.NotContains(t, b.String(), "\x1b")
	require.NotContains(t, b.String(), "\nnamespace")
	require.Contains(t, b.String(), `"a\x1b[2J\nnamespace  9"`)
}
