package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDriverHangs: a driver that does not return from the first call for a device is no reason to wait for ever. A mount that may choose goes without the GPU, and says which call it is; one
// that may not fails, and says it, too; so does the doctor, who goes on.
func TestDriverHangs(t *testing.T) {
	const why = "hip runtime: hipGetDeviceCount does not return, after 5s"
	hangs := func(t *testing.T) *place {
		t.Parallel() // they wait, mostly
		p := newHIPPlace(t, "")
		p.env = append(p.env, "LANEFS_SHIM_FAIL="+p.path("fail"), driverLimit+"=5s")
		require.NoError(t, os.WriteFile(p.path("fail"), []byte("open"), 0o600))
		return p
	}
	t.Run("auto", func(t *testing.T) {
		p := hangs(t)
		img, mnt := p.image("image", 32), p.mkdir("mnt")
		p.within("mount", "--gpu", "auto", "-o", "log="+p.path("log"), img, mnt)
		log := []byte(p.daemonLog("log"))
		require.Equal(t, 1, bytes.Count(log, []byte("the lanes run on the CPU")), "%s", log)
		require.Contains(t, string(log), why)
		require.NoError(t, writeDurably(filepath.Join(mnt, "file"), []byte("without the GPU")))
		r, err := p.stat(mnt)
		require.NoError(t, err)
		require.Equal(t, "host", r.Runtime.Name)
		p.within("umount", mnt)
		fsck(t, img)
	})
	t.Run("hip", func(t *testing.T) {
		p := hangs(t)
		img, mnt := p.image("image", 32), p.mkdir("mnt")
		said := p.failsWithin("mount", "--gpu", "hip", img, mnt)
		require.Contains(t, said, why)
		require.Contains(t, said, "dmesg")
		require.False(t, p.mounted(mnt))
	})
	t.Run("doctor", func(t *testing.T) {
		require.Contains(t, hangs(t).within("doctor"), why)
	})
}
