package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/memfd"
	lanefs "github.com/lanefs/lanefs/sdk/go"
)

// TestHungImport: the import of a program's memory may wait for that program. It is an error for it, in the end, and nothing else is held up: not the GPU's other clients, nor the unmount,
// be it that the program waits or that it has gone.
func TestHungImport(t *testing.T) {
	for _, waits := range []bool{true, false} {
		t.Run(map[bool]string{true: "waits", false: "gone"}[waits], func(t *testing.T) {
			t.Parallel() // they wait, mostly
			p := hungCall(t, "")
			if !waits {
				p.env = append(p.env, driverLimit+"=10m") // that is not what ends it
			}
			const size = 8 << 20
			img, _ := p.imageOfFile(64, size)
			mnt := p.mkdir("mnt")
			p.ok("mount", "--gpu", "hip", "-o", "vram=32M,log="+p.path("log"), img, mnt)
			f, err := os.Open(filepath.Join(mnt, "file"))
			require.NoError(t, err)
			connect := func() *lanefs.Session {
				s, err := lanefs.Connect(f)
				require.NoError(t, err)
				return s
			}
			s, other := connect(), connect()
			own, err := memfd.New("a program's")
			require.NoError(t, err)
			require.NoError(t, unix.Ftruncate(own, size))
			defer unix.Close(own)
			register := func() error {
				_, err := s.Register(gpu.Export{FD: own, Size: size, Kind: gpu.ExportPOSIX})
				return err
			}
			require.NoError(t, register())

			require.NoError(t, os.WriteFile(p.path("fail"), []byte("hipMemImportFromShareableHandle 1"), 0o600))
			failed := make(chan error, 1)
			go func() { failed <- register() }()
			p.eventually("it hangs", func() bool {
				_, err := os.Stat(p.path("fail.hangs"))
				return err == nil
			})
			b, err := other.Map(f, 0, 0)
			require.NoError(t, err, "another client goes on")
			require.NoError(t, b.Close())
			if waits {
				err := <-failed
				require.ErrorIs(t, err, unix.EIO)
				require.ErrorContains(t, err, "hipMemImportFromShareableHandle does not return, after 5s")
				b, err := s.Map(f, 0, 0)
				require.NoError(t, err, "and the same goes on")
				require.NoError(t, b.Close())
			}
			r, err := p.stat(mnt)
			require.NoError(t, err)
			require.Empty(t, r.Runtime.Failed)
			require.NoError(t, s.Close())
			require.NoError(t, other.Close())
			require.NoError(t, f.Close())
			p.within("umount", mnt)
			p.eventually("the mount is gone", func() bool { return !p.mounted(mnt) })
			fsck(t, img)
		})
	}
}

// TestHungPin: to pin pages of the image may wait for the file system that the image is on. Reads go another way meanwhile, the pages are left in the end, and the unmount waits for nothing.
func TestHungPin(t *testing.T) {
	t.Parallel() // it waits, mostly
	p := hungCall(t, "")
	const size = 96 << 20
	img, _ := p.imageOfFile(160, size)
	mnt := p.mkdir("mnt")
	p.ok("mount", "--gpu", "hip", "-o", "vram=112M,log="+p.path("log"), img, mnt)
	require.NoError(t, os.WriteFile(p.path("fail"), []byte("hipHostRegister 1"), 0o600))
	f, err := os.OpenFile(filepath.Join(mnt, "file"), os.O_RDWR, 0)
	require.NoError(t, err)
	s, err := lanefs.Connect(f)
	require.NoError(t, err)
	read := func() {
		b, err := s.MapPrivate(f, 0, size)
		require.NoError(t, err)
		require.NoError(t, b.Close())
	}
	p.eventually("it hangs", func() bool {
		read()
		_, err := os.Stat(p.path("fail.hangs"))
		return err == nil
	})
	p.eventually("the pages are left", func() bool {
		read()
		r, err := p.stat(mnt)
		require.NoError(t, err)
		require.Empty(t, r.Runtime.Failed)
		return r.Runtime.Left > 0
	})
	read()
	require.NoError(t, s.Close())
	require.NoError(t, f.Close())
	p.within("umount", mnt)
	p.eventually("the mount is gone", func() bool { return !p.mounted(mnt) })
	fsck(t, img)
}
