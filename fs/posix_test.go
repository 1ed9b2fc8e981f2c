package fs

import (
	"os"
	"strings"
	"testing"

	"github.com/hanwen/go-fuse/v2/posixtest"
	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/uring/uringtest"
)

// TestPosix runs go-fuse's suite, with the kernel writing through and with its write-back cache; over io_uring, too, if that is not what
// mounts take anyway.
func TestPosix(t *testing.T) {
	usual, _ := newMount(t, Options{}).srv.Transport()
	for name, opt := range map[string]Options{"through": {}, "writeback": {WriteBack: true},
		"io_uring": {IOUring: IOUringOn}, "io_uring-writeback": {IOUring: IOUringOn, WriteBack: true}} {
		t.Run(name, func(t *testing.T) {
			if opt.IOUring == IOUringOn {
				if strings.HasPrefix(usual, "io_uring") {
					t.Skip("mounts take requests by io_uring anyway")
				}
				uringtest.Enable(t)
			}
			m := newMount(t, opt)
			for name, f := range posixtest.All {
				t.Run(name, func(t *testing.T) {
					if name == "FcntlFlockLocksFile" {
						// It wants locks of one process to exclude one another, which fcntl(2) says they do not.
						// TestLocks does it with two processes.
						t.Skip("SKIPPED: not what fcntl(2) says; go-fuse skips it too")
					}
					if strings.HasPrefix(name, "XAttr") {
						needXattr(t, m)
					}
					dir := m.path(name)
					require.NoError(t, os.Mkdir(dir, 0o755))
					f(t, dir)
				})
			}
		})
	}
}
