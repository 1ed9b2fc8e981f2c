package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	lanefs "github.com/lanefs/lanefs/sdk/go"
)

// TestHungCopy: a copy to a program's memory whose call of the driver does not return is an error for the program. All others go on, also with that file, and those of another program
// with memory of the GPU hear of it; the mount says it; it ends in time, also while the call hangs, and the volume is whole.
func TestHungCopy(t *testing.T) {
	for _, c := range []struct {
		name    string
		op      lanefs.Op
		unmount bool // while it is not known yet that the copy hangs
	}{
		{"read", lanefs.OpRead, false},
		{"write", lanefs.OpWrite, false},
		{"read, unmount", lanefs.OpRead, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // they wait, mostly
			p := newHIPPlace(t, "")
			p.env = append(p.env, "LANEFS_SHIM_FAIL="+p.path("fail"))
			const size = 8 << 20
			img, content := p.imageOfFile(64, size)
			mnt := p.mkdir("mnt")
			p.ok("mount", "--gpu", "hip", "-o", "vram=32M,log="+p.path("log"), img, mnt)
			path := filepath.Join(mnt, "file")
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			require.NoError(t, err)
			s, err := lanefs.Connect(f)
			require.NoError(t, err)
			file, err := s.Open(f)
			require.NoError(t, err)
			own, err := s.Alloc(f, size)
			require.NoError(t, err)
			ring, err := s.NewRing(8)
			require.NoError(t, err)
			request := func(op lanefs.Op) *lanefs.Request {
				q := &lanefs.Request{Op: op, File: file, Buffer: own, Len: size}
				ring.Start(q)
				return q
			}
			for range 2 {
				q := request(lanefs.OpRead)
				require.NoError(t, q.Wait())
				require.EqualValues(t, size, q.N)
			}

			require.NoError(t, os.WriteFile(p.path("fail"), []byte("copy"), 0o600))
			hung := request(c.op)
			failed := make(chan error, 1)
			go func() { failed <- hung.Wait() }()
			if !c.unmount {
				require.NoError(t, writeDurably(filepath.Join(mnt, "new"), content))
				got, err := os.ReadFile(path)
				require.NoError(t, err)
				require.True(t, bytes.Equal(content, got))
				require.ErrorIs(t, <-failed, unix.EIO)
				require.NoError(t, writeDurably(path, content), "with that file, too")
				require.ErrorIs(t, request(lanefs.OpRead).Wait(), unix.EIO, "nothing is copied any more")
				p.eventually("the lanes move", func() bool {
					r, err := p.stat(mnt)
					return err == nil && r.Runtime.Failed != ""
				})
				r, err := p.stat(mnt)
				require.NoError(t, err)
				require.Contains(t, r.Runtime.Failed, "a call of the GPU's driver does not return")
				require.Contains(t, p.ok("stat", mnt), "left        ")
				left := r.Runtime.Left
				require.NoError(t, own.Close())
				p.eventually("the program's memory is counted", func() bool {
					r, err := p.stat(mnt)
					return err == nil && r.Runtime.Left >= left+size
				})
				require.NoError(t, writeDurably(filepath.Join(mnt, "newer"), content))
				require.NoError(t, s.Close())
			} else {
				p.eventually("it hangs", func() bool {
					_, err := os.Stat(p.path("fail.hangs"))
					return err == nil
				})
				require.NoError(t, s.Close())
			}
			require.NoError(t, f.Close())
			p.within("umount", mnt)
			p.eventually("the mount is gone", func() bool { return !p.mounted(mnt) })
			fsck(t, img)
			for _, name := range []string{"file", "new", "newer"}[:map[bool]int{true: 1, false: 3}[c.unmount]] {
				tool(t, "debugfs", "-R", "dump /"+name+" "+p.path("dumped"), img)
				got, err := os.ReadFile(p.path("dumped"))
				require.NoError(t, err)
				require.True(t, bytes.Equal(content, got), name)
			}
		})
	}
}
