package softctl

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev/blockdevtest/looptest"
)

// protectable is an image or block device that can be write-protected.
type protectable struct {
	path    string
	protect func()
	lift    func()
	remedy  string // that errors name
}

// protectables calls f with one of each kind.
func protectables(t *testing.T, f func(t *testing.T, p protectable)) {
	run := func(t *testing.T, name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Skipf("SKIPPED: %s %q: %s", name, args, out)
		}
	}
	t.Run("block device", func(t *testing.T) {
		dev, _ := looptest.Attach(t, newImage(t, 1<<20))
		f(t, protectable{dev, func() { run(t, "blockdev", "--setro", dev) }, func() { run(t, "blockdev", "--setrw", dev) }, "lift its write protection with blockdev --setrw " + dev})
	})
	t.Run("immutable", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "image")
		require.NoError(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
		t.Cleanup(func() { _ = exec.Command("chattr", "-i", path).Run() })
		f(t, protectable{path, func() { run(t, "chattr", "+i", path) }, func() { run(t, "chattr", "-i", path) }, "take its attribute i away with chattr -i " + path})
	})
	t.Run("sealed", func(t *testing.T) {
		fd, err := unix.MemfdCreate("image", unix.MFD_ALLOW_SEALING|unix.MFD_CLOEXEC)
		require.NoError(t, err)
		defer unix.Close(fd)
		require.NoError(t, unix.Ftruncate(fd, 1<<20))
		f(t, protectable{fmt.Sprintf("/proc/self/fd/%d", fd), func() {
			_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE)
			require.NoError(t, err)
		}, nil, "copy it to a file that is not sealed"})
	})
	t.Run("file system", func(t *testing.T) {
		dir := t.TempDir()
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
			t.Skipf("SKIPPED: needs root, to mount a tmpfs: %v", err)
		}
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		path := filepath.Join(dir, "image")
		require.NoError(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
		f(t, protectable{path, func() { run(t, "mount", "-o", "remount,ro", dir) }, func() { run(t, "mount", "-o", "remount,rw", dir) }, "make its file system writable with mount -o remount,rw"})
	})
}

// TestOpenProtected: an image that is write-protected is not opened for writing, and the error names what lifts the protection. It can be read.
func TestOpenProtected(t *testing.T) {
	protectables(t, func(t *testing.T, p protectable) {
		p.protect()
		_, err := Open(p.path, Options{})
		require.ErrorContains(t, err, "cannot be opened for writing (mount and raw take it read-only with -o ro, bench and prove without --destroy; or "+p.remedy)
		c, err := Open(p.path, Options{ReadOnly: true})
		require.NoError(t, err)
		require.NoError(t, c.Close())
		if p.lift != nil {
			p.lift()
			c, err = Open(p.path, Options{})
			require.NoError(t, err)
			require.NoError(t, c.Close())
		}
	})
}

// TestProtectedInUse: an image that becomes write-protected while it is open answers writes with Namespace is Write Protected and Do Not Retry, also such as are to be durable, goes on being
// read and flushed, and takes writes again when that is lifted: it has lost nothing.
func TestProtectedInUse(t *testing.T) {
	protectables(t, func(t *testing.T, p protectable) {
		if strings.HasSuffix(t.Name(), "file_system") {
			return // Linux does not protect one of which a file is open for writing
		}
		var log bytes.Buffer
		h := newHostOn(t, p.path, Options{Log: textLog(&log)}).enable()
		q := h.queue(1, 16)
		b, at := h.alloc(4096)
		copy(b, "before")
		h.expect(success, q, rw(1, 1, 0, 8).prp(at, 0))
		if p.lift == nil {
			t.Skip("SKIPPED: Linux does not seal a file that is mapped for writing")
		}
		p.protect()
		h.expect(writeProtected, q, rw(1, 1, 0, 8).prp(at, 0))
		h.expect(writeProtected, q, rw(1, 1, 0, 8).prp(at, 0).dw(12, 1<<30|7)) // FUA
		clear(b)
		h.expect(success, q, rw(2, 1, 0, 8).prp(at, 0))
		require.Equal(t, "before", string(b[:6]))
		h.expect(success, q, cmdOf(0, 1))
		require.Contains(t, log.String(), "the image has become write-protected: "+p.remedy)
		p.lift()
		h.expect(success, q, rw(1, 1, 0, 8).prp(at, 0).dw(12, 1<<30|7))
	})
}
