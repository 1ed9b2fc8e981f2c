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
