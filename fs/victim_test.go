package fs

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
)

// TestLinkCount: the kernel has the right link count if it receives the attributes of a file between the removal of one of its
// names and the reply. On a mount with dirsync the reply waits for the device.
func TestLinkCount(t *testing.T) {
	skipRaced(t)
	modes := map[string]Options{"through": {Mount: []string{"dirsync"}}, "writeback": {WriteBack: true, Mount: []string{"dirsync"}}}
	for mode, opt := range modes {
		for what, remove := range map[string]func(m *mounted) error{
			"unlink":        func(m *mounted) error { return os.Remove(m.path("a", "file")) },
			"rename":        func(m *mounted) error { return os.Rename(m.path("a", "other"), m.path("a", "file")) },
			"rename across": func(m *mounted) error { return os.Rename(m.path("c", "third"), m.path("a", "file")) },
			"rename whiteout": func(m *mounted) error {
				return unix.Renameat2(unix.AT_FDCWD, m.path("c", "third"), unix.AT_FDCWD, m.path("a", "file"), unix.RENAME_WHITEOUT)
			},
		} {
			for how, get := range map[string]func(m *mounted) error{
				"getattr": func(m *mounted) error {
					var st unix.Statx_t
					return unix.Statx(unix.AT_FDCWD, m.path("b", "file"), unix.AT_STATX_FORCE_SYNC, unix.STATX_ALL, &st)
				},
				"list": func(m *mounted) error {
					_, err := os.ReadDir(m.path("b"))
					return err
				},
			} {
				t.Run(mode+" "+what+" "+how, func(t *testing.T) {
					m := newMount(t, opt)
					for _, d := range []string{"a", "b", "c"} {
						require.NoError(t, os.Mkdir(m.path(d), 0o755))
					}
					write(t, m.path("a", "file"), "text")
					write(t, m.path("a", "other"), "text")
					write(t, m.path("c", "third"), "text")
					require.NoError(t, os.Link(m.path("a", "file"), m.path("b", "file")))
					links := func() uint32 {
						var st unix.Statx_t
						require.NoError(t, unix.Statx(unix.AT_FDCWD, m.path("b", "file"), 0, unix.STATX_NLINK, &st))
						return st.Nlink
					}
					require.EqualValues(t, 2, links())
					during(t, m.dev, blockdev.Fault{Op: blockdev.OpFlush}, func() error { return remove(m) }, func() error { return get(m) })
					require.EqualValues(t, 1, links())
					ino := inoOf(t, m.path("b", "file"))
					require.Eventually(t, func() bool {
						n := m.srv.nodes.get(ino)
						return n == nil || n.leaving.Load() == 0
					}, time.Minute, time.Millisecond,
						"the kernel may keep attributes again")
				})
			}
		}
	}
}
