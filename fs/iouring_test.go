package fs

import (
	"bytes"
	"crypto/rand"
	mrand "math/rand/v2"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/uring"
	"github.com/lanefs/lanefs/fs/uring/uringtest"
)

// TestIOUring: requests come by io_uring where that is asked for and there is.
func TestIOUring(t *testing.T) {
	uringtest.Enable(t)
	m := newMount(t, Options{IOUring: IOUringOn})
	name, why := m.srv.Transport()
	require.Contains(t, name, "io_uring")
	require.NoError(t, why)
	write(t, m.path("file"), "hello")
	require.NotZero(t, m.srv.Stats().Writes)
	m.unmount()
}

// TestIOUringOff: without the module's parameter the mount goes on over /dev/fuse, and says why.
func TestIOUringOff(t *testing.T) {
	uringtest.Disable(t)
	m := newMount(t, Options{IOUring: IOUringOn})
	name, why := m.srv.Transport()
	require.Equal(t, "/dev/fuse", name)
	require.ErrorIs(t, why, uring.ErrParameter)
	require.ErrorContains(t, why, "options fuse enable_uring=1")
	write(t, m.path("file"), "hello")
}

// TestIOUringSwitchedOff: the parameter is taken away between the look at it and the mount.
func TestIOUringSwitchedOff(t *testing.T) {
	uringtest.Enable(t)
	const parameter = "/sys/module/fuse/parameters/enable_uring"
	afterRings = func() { require.NoError(t, os.WriteFile(parameter, []byte("N"), 0)) }
	t.Cleanup(func() { afterRings = nil; os.WriteFile(parameter, []byte("Y"), 0) })
	m := newMount(t, Options{IOUring: IOUringOn})
	name, why := m.srv.Transport()
	require.Equal(t, "/dev/fuse", name)
	require.ErrorIs(t, why, uring.ErrFlag)
	write(t, m.path("file"), "hello")
}

// TestIOUringData: many write and read parts of files of their own at once, of all sizes and at all offsets, through the page cache and past it.
func TestIOUringData(t *testing.T) {
	uringtest.Enable(t)
	for name, opt := range map[string]Options{"through": {}, "writeback": {WriteBack: true}, "copied": {CopyReads: true}} {
		t.Run(name, func(t *testing.T) {
			opt.IOUring = IOUringOn
			m := newMount(t, opt)
			var all sync.WaitGroup
			for i := range 8 {
				all.Go(func() {
					flags := os.O_RDWR | os.O_CREATE
					direct := i%2 == 1
					if direct {
						flags |= unix.O_DIRECT
					}
					f, err := os.OpenFile(m.path(string(rune('a'+i))), flags, 0o644)
					if err != nil {
						t.Error(err)
						return
					}
					defer f.Close()
					if err := readAndWrite(f, direct); err != nil {
						t.Errorf("%s: %v", f.Name(), err)
					}
				})
			}
			all.Wait()
		})
	}
}

// readAndWrite holds a file against a copy in memory.
func readAndWrite(f *os.File, direct bool) error {
	const most = 4 << 20
	model := make([]byte, most)
	memory, err := unix.Mmap(-1, 0, 2<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	defer unix.Munmap(memory)
	if err := f.Truncate(most); err != nil {
		return err
	}
	for range 150 {
		size := 1 + mrand.IntN(1<<mrand.IntN(21))
		off := mrand.IntN(most - size)
		if direct {
			size, off = (size+4095)&^4095, off&^4095
			size = min(size, most-off)
		}
		b := memory[:size]
		if mrand.IntN(2) == 0 {
			rand.Read(b)
			if _, err := f.WriteAt(b, int64(off)); err != nil {
				return err
			}
			copy(model[off:], b)
			continue
		}
		if _, err := f.ReadAt(b, int64(off)); err != nil {
			return err
		}
		if !bytes.Equal(b, model[off:off+size]) {
			return &os.PathError{Op: "compare", Path: f.Name(), Err: unix.EIO}
		}
	}
	return nil
}
