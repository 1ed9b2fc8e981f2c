package fs

import (
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// helpers run in a child process, for tests that need a page fault that blocks, or the locks of a second process. See helper.
var helpers = map[string]func(args []string){
	"append":       appendHelper,
	"change":       changeHelper,
	"label":        labelHelper,
	"mmap":         mmapHelper,
	"panics":       panicsHelper,
	"increment":    incrementHelper,
	"serve":        serveHelper,
	"setflags":     setFlagsHelper,
	"trylock":      tryLockHelper,
	"unprivileged": unprivilegedHelper,
}

const helperEnv = "LANEFS_FS_TEST_HELPER"

func TestMain(m *testing.M) {
	if f := helpers[os.Getenv(helperEnv)]; f != nil {
		f(os.Args[1:])
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// helper is a command that runs one of helpers in a child.
func helper(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	require.Contains(t, helpers, name)
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), helperEnv+"="+name)
	return cmd
}

// skipRaced skips a test of which the race detector would see nothing new, but make much longer: of one request after another, or of who waits for whom. It runs
// once without the detector.
func skipRaced(t *testing.T) {
	t.Helper()
	if raced {
		t.Skip("long under the race detector, and nothing for it: runs without it, in the part over /dev/fuse")
	}
}

func needTool(t *testing.T, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("SKIPPED: %s is missing: install it (make deps)", name)
	}
}

func needFuse(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root to mount")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
}

// mounted is a volume with a mount on it.
type mounted struct {
	*volume
	dir   string
	srv   *Server
	close sync.Once
}

// newMount makes a volume and mounts it. At the end of the test it is unmounted and checked.
func newMount(t *testing.T, opt Options, mkfs ...string) *mounted {
	t.Helper()
	needFuse(t)
	return mountVolume(t, newVolume(t, mkfs...), opt)
}

// mountVolume is newMount for a volume that is there.
func mountVolume(t *testing.T, v *volume, opt Options) *mounted {
	t.Helper()
	m := &mounted{volume: v}
	var err error
	m.dir, err = os.MkdirTemp("", "lanefs-fs-mnt-*")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(m.dir, 0o755))
	t.Cleanup(func() { os.Remove(m.dir) })
	if opt.Log == nil {
		opt.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	opt.FSName, opt.SchedIdle = "/dev/lanefs-test", true
	m.srv, err = Mount(m.dir, m.vol, opt)
	require.NoError(t, err)
	t.Cleanup(func() { m.unmount() })
	return m
}

// unmount ends the mount and the volume, and checks what is left. A mount that stays busy is detached, so that no test
// leaves one behind.
func (m *mounted) unmount() {
	m.close.Do(func() {
		err := m.srv.Unmount()
		if err != nil {
			m.t.Errorf("unmount: %v", err)
			if err := Detach(m.dir); err != nil {
				m.t.Errorf("detach: %v", err)
			}
			return
		}
		require.Zero(m.t, m.srv.Stats().Nodes, "nodes left after the mount went away")
		m.volume.close()
	})
}

func (m *mounted) path(name ...string) string {
	return filepath.Join(append([]string{m.dir}, name...)...)
}
