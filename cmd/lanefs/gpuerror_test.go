package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// A GPU fails under a mount: it is noticed, said, and the mount goes on on the CPU, or reads on. Make test takes half of the ways to fail.
func TestGPUFails(t *testing.T) {
	for k, c := range []struct {
		fail, mode, why, gpu string
	}{
		{"refuse", "host", "unspecified launch failure", "hip"},
		{"hang", "host", "the lane's kernel hangs", "hip"},
		{"refuse", "ro", "unspecified launch failure", "hip"},
		{"hang", "host", "the lane's kernel hangs", "hip:0,1"},
		{"stick", "host", "a call of the GPU's driver does not return", "hip"},
		{"stick", "ro", "a call of the GPU's driver does not return", "hip:0,1"},
	} {
		if !disktest.Turn(k, 2) {
			continue
		}
		t.Run(c.fail+" "+c.mode+" "+c.gpu, func(t *testing.T) {
			p := newHIPPlace(t, "", "LANEFS_SHIM_DEVICES=2")
			p.env = append(p.env, "LANEFS_SHIM_FAIL="+p.path("fail"))
			old := bytes.Repeat([]byte("before the GPU failed "), 100_000)
			require.NoError(t, os.WriteFile(filepath.Join(p.mkdir("tree"), "old"), old, 0o600))
			img, mnt := p.image("image", 64, "-d", p.path("tree")), p.mkdir("mnt")
			p.ok("mount", "--gpu", c.gpu, "-o", "lanes=gpu:2+cpu:2,gpu_error="+c.mode+",log="+p.path("log"), img, mnt)
			require.NoError(t, os.WriteFile(filepath.Join(mnt, "small"), []byte("on the GPU"), 0o600))
			require.NoError(t, os.WriteFile(p.path("fail"), []byte(c.fail), 0o600))
			got, err := os.ReadFile(filepath.Join(mnt, "old"))
			require.NoError(t, err, "what is on the medium is read all the same")
			require.True(t, bytes.Equal(old, got))

			err = writeDurably(filepath.Join(mnt, "new"), old)
			if c.mode == "ro" {
				require.Error(t, err)
			} else {
				require.NoError(t, err)
			}
			r, err := p.stat(mnt)
			require.NoError(t, err)
			require.Contains(t, r.Runtime.Failed, c.why)
			require.Equal(t, c.mode == "ro", r.ReadOnly)
			require.Contains(t, p.ok("stat", mnt), "failed      the lanes run on the CPU now: ")
			require.NotZero(t, r.Runtime.Left)
			require.Equal(t, 1, bytes.Count([]byte(p.daemonLog("log")), []byte("the lanes have failed and move")), "said once")
			p.run("umount", mnt) // it says what could not be written
			p.eventually("the mount is gone", func() bool { return !p.mounted(mnt) })

			if c.mode == "ro" { // the journal may have something
				p.ok("mount", "--gpu", "host", img, mnt)
				p.ok("umount", mnt)
			} else {
				tool(t, "debugfs", "-R", "dump /new "+p.path("dumped"), img)
				got, err = os.ReadFile(p.path("dumped"))
				require.NoError(t, err)
				require.True(t, bytes.Equal(old, got))
			}
			fsck(t, img)
		})
	}
}

// TestGPUFailsUnused: without lanes= a GPU has no part in what goes to and from the page cache of an image, and nobody notices that it has failed. Make test takes
// one of the ways to fail.
func TestGPUFailsUnused(t *testing.T) {
	for k, fail := range []string{"refuse", "hang", "lose"} {
		if !disktest.Turn(k, 3) {
			continue
		}
		p := newHIPPlace(t, "")
		p.env = append(p.env, "LANEFS_SHIM_FAIL="+p.path("fail"))
		img, mnt := p.image("image", 64), p.mkdir("mnt")
		p.ok("mount", "--gpu", "hip", "-o", "gpu_error=ro,vram=16M,log="+p.path("log"), img, mnt)
		require.NoError(t, os.WriteFile(p.path("fail"), []byte(fail), 0o600))
		want := bytes.Repeat([]byte("beside a GPU that fails "), 100_000)
		require.NoError(t, writeDurably(filepath.Join(mnt, "file"), want))
		r, err := p.stat(mnt)
		require.NoError(t, err)
		require.Empty(t, r.Runtime.Failed)
		require.Zero(t, r.Runtime.Chosen.GPU)
		_, errs, err := p.run("umount", mnt) // which may have to say that it waits
		require.NoError(t, err, errs)
		fsck(t, img)
		tool(t, "debugfs", "-R", "dump /file "+p.path("dumped"), img)
		got, err := os.ReadFile(p.path("dumped"))
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got))
		if fail != "refuse" { // which is noticed by nobody who launches no kernel
			require.Contains(t, p.daemonLog("log"), "the GPU does not end its kernels")
		}
	}
}

func writeDurably(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if serr := f.Sync(); err == nil {
		err = serr
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// Over the bridge a GPU's lanes do not touch the BAR.
func TestBridgeMount(t *testing.T) {
	p := newHIPPlace(t, "")
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	want := bytes.Repeat([]byte("over the bridge "), 50_000)
	for _, options := range []string{"doorbell=bridge", "memory-mode=15"} {
		p.ok("mount", "--gpu", "hip", "-o", options, img, mnt)
		require.NoError(t, writeDurably(filepath.Join(mnt, "file"), want))
		r, err := p.stat(mnt)
		require.NoError(t, err)
		require.Equal(t, "bridge", r.Runtime.Bells)
		require.Empty(t, r.Runtime.Refused)
		p.ok("umount", mnt)
		tool(t, "debugfs", "-R", "dump /file "+p.path("dumped"), img)
		got, err := os.ReadFile(p.path("dumped"))
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got))
		fsck(t, img)
	}
	require.Contains(t, p.fails("mount", "--gpu", "hip", "-o", "doorbell=iomem,memory-mode=4", img, mnt), "doorbells are either in the BAR (iomem) or in device memory")
	require.Contains(t, p.fails("mount", "--gpu", "hip", "-o", "doorbell=direct", img, mnt), "hip runtime: import of a memfd")
}

// With doorbell=direct the lanes ring in a BAR that their runtime has imported.
func TestDirectMount(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	p.ok("mount", "--gpu", "host", "-o", "doorbell=direct", img, mnt)
	require.NoError(t, writeDurably(filepath.Join(mnt, "file"), []byte("through an import")))
	r, err := p.stat(mnt)
	require.NoError(t, err)
	require.Equal(t, "direct", r.Runtime.Bells)
	p.ok("umount", mnt)
	fsck(t, img)
}
