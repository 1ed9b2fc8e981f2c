package claim

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestOverlay: an image by its path on an overlay, also by a bind mount and a loop device, is the one in the upper directory. Its twin in the
// lower directory is another one.
func TestOverlay(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	mount := func(source, target, fstype string, flags uintptr, data string) {
		t.Helper()
		if err := unix.Mount(source, target, fstype, flags, data); err != nil {
			t.Skipf("SKIPPED: %s %s cannot be mounted here: %v", fstype, target, err)
		}
		t.Cleanup(func() { require.NoError(t, unix.Unmount(target, 0)) })
	}
	mount("tmpfs", dir, "tmpfs", 0, "") // upper directories are not on every file system
	upper := path(`up "per", and \more`)
	for _, d := range []string{path("lower/in"), upper, path("work"), path("over"), path("bound")} {
		require.NoError(t, os.MkdirAll(d, 0o700))
	}
	require.NoError(t, os.WriteFile(path("lower/in/image"), make([]byte, 1<<20), 0o600))
	mount("overlay", path("over"), "overlay", 0, "lowerdir="+path("lower")+",workdir="+path("work")+`,upperdir=`+path(`up "per"\, and \\more`))
	mount(path("over/in"), path("bound"), "", unix.MS_BIND, "")
	over, bound, below := path("over/in/image"), path("bound/image"), filepath.Join(upper, "in/image")

	release := granted(t, over, true) // which copies it up
	refused(t, below, true, "in use")
	refused(t, below, false, "in use")
	refused(t, bound, true, "in use")
	granted(t, path("lower/in/image"), true)()
	release()
	release = granted(t, below, true)
	for _, path := range []string{over, bound} {
		refused(t, path, true, "in use")
		refused(t, path, false, "in use")
	}
	loop, detach := attach(t, bound)
	refused(t, loop, true, "in use")
	release()
	refused(t, below, true, loop)
	release = granted(t, loop, true)
	refused(t, below, true, "in use")
	release()
	detach()
	granted(t, bound, false)
	granted(t, below, false)
	granted(t, over, false)
}
