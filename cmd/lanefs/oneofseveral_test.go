package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	lanefs "github.com/lanefs/lanefs/sdk/go"
)

// severalHang is a place with two GPUs, of which a call of the second's does not return, as hungCall.
func severalHang(t *testing.T, call string) *place {
	t.Helper()
	p := newHIPPlace(t, "", "LANEFS_SHIM_DEVICES=2")
	p.env = append(p.env, "LANEFS_SHIM_FAIL="+p.path("fail"), driverLimit+"=5s")
	require.NoError(t, os.WriteFile(p.path("fail"), []byte(call), 0o600))
	return p
}

// TestOneOfSeveralHangsOpening: a mount that was told to use two GPUs, of which one hangs when it is opened or set up, fails, and says which call it is.
func TestOneOfSeveralHangsOpening(t *testing.T) {
	for _, call := range []string{"hipModuleLoadData 1 1", "hipStreamCreateWithPriority 1 1", "hipStreamCreateWithFlags 3 1"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel() // they wait, mostly
			p := severalHang(t, call)
			img, mnt := p.image("image", 32), p.mkdir("mnt")
			said := p.failsWithin("mount", "--gpu", "hip:0,1", "-o", "vram=8M,lanes=2", img, mnt)
			name, _, _ := strings.Cut(call, " ")
			require.Contains(t, said, "hip runtime: "+name+" does not return, after 5s")
			require.Equal(t, 1, strings.Count(said, "does not return"), "once")
			require.False(t, p.mounted(mnt))
			p.ok("mount", "--gpu", "hip:0", "-o", "vram=8M,lanes=2", img, mnt)
			p.within("umount", mnt)
			fsck(t, img)
		})
	}
}

// TestOneOfSeveralHangs: of two GPUs one does not return from a copy, or is lost. Its program has an error; one with memory of the other goes on, as do all files, and the unmount ends though the
// calls by which the GPU would be closed hang, too.
func TestOneOfSeveralHangs(t *testing.T) {
	for _, how := range []string{"hipMemcpyAsync 1 1", "lose 1", "hipStreamDestroy 1 1", "hipHostUnregister 1 1", "hipModuleUnload 1 1"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel() // they wait, mostly
			p := severalHang(t, "")
			const size = 8 << 20
			img, content := p.imageOfFile(64, size)
			mnt := p.mkdir("mnt")
			p.ok("mount", "--gpu", "hip:0,1", "-o", "vram=32M,lanes=2,log="+p.path("log"), img, mnt)
			f, err := os.OpenFile(filepath.Join(mnt, "file"), os.O_RDWR, 0)
			require.NoError(t, err)
			type client struct {
				s    *lanefs.Session
				read func() error
			}
			connect := func(gpu string) client {
				s, err := lanefs.Connect(f)
				require.NoError(t, err)
				require.NoError(t, s.Use(gpu))
				file, err := s.Open(f)
				require.NoError(t, err)
				own, err := s.Alloc(f, size)
				require.NoError(t, err)
				ring, err := s.NewRing(8)
				require.NoError(t, err)
				return client{s, func() error {
					q := &lanefs.Request{Op: lanefs.OpRead, File: file, Buffer: own, Len: size}
					ring.Start(q)
					return q.Wait()
				}}
			}
			first, second := connect("0"), connect("1")
			require.NoError(t, first.read())
			require.NoError(t, second.read())

			require.NoError(t, os.WriteFile(p.path("fail"), []byte(how), 0o600))
			if strings.HasPrefix(how, "hipMemcpyAsync") {
				failed := make(chan error, 1)
				go func() { failed <- second.read() }()
				p.eventually("it hangs", func() bool {
					_, err := os.Stat(p.path("fail.hangs"))
					return err == nil
				})
				require.NoError(t, first.read(), "while it hangs")
				require.ErrorIs(t, <-failed, unix.EIO)
				require.ErrorIs(t, second.read(), unix.EIO)
			}
			if how == "lose 1" {
				p.eventually("its program hears of it", func() bool { return errors.Is(second.read(), unix.EIO) })
			}
			if strings.HasPrefix(how, "hipMemcpyAsync") || how == "lose 1" {
				p.eventually("the mount says it", func() bool {
					r, err := p.stat(mnt)
					return err == nil && r.Runtime.Failed != ""
				})
				for range 3 {
					require.NoError(t, first.read(), "the other GPU's memory is read as before")
				}
				b, err := first.s.Map(f, 0, 0)
				require.NoError(t, err, "and allocated")
				require.NoError(t, b.Close())
			}
			require.NoError(t, writeDurably(filepath.Join(mnt, "new"), content))
			got, err := os.ReadFile(filepath.Join(mnt, "file"))
			require.NoError(t, err)
			require.True(t, bytes.Equal(content, got))
			require.NoError(t, first.s.Close())
			require.NoError(t, second.s.Close())
			require.NoError(t, f.Close())
			p.within("umount", mnt)
			p.eventually("the mount is gone", func() bool { return !p.mounted(mnt) })
			fsck(t, img)
			tool(t, "debugfs", "-R", "dump /new "+p.path("dumped"), img)
			got, err = os.ReadFile(p.path("dumped"))
			require.NoError(t, err)
			require.True(t, bytes.Equal(content, got))
		})
	}
}
