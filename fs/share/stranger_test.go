package share_test

import (
	"errors"
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/sharetest"
	"github.com/lanefs/lanefs/fs/share/wire"
	"github.com/lanefs/lanefs/gpu"
)

// dialAs is dial by another user, who may go wherever the test may.
func dialAs(t *testing.T, f *os.File, uid int) *wire.Conn {
	t.Helper()
	path := socket(t, f)
	var c *wire.Conn
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and the thread ends with this
		_, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0))
		h, caps := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
		err := unix.Capget(&h, &caps[0])
		for i := range caps {
			caps[i].Effective = caps[i].Permitted
		}
		if err = errors.Join(err, unix.Capset(&h, &caps[0])); errno != 0 {
			err = errno
		}
		if err == nil {
			c, err = wire.Dial(path)
		}
		done <- err
	}()
	require.NoError(t, <-done)
	t.Cleanup(func() { c.Close() })
	return c
}

// TestStranger: what only root and the user that mounted may do, though the descriptor is open for all: to pin, and to have the GPU's driver open a handle, which it
// would do for the daemon whosever the handle is.
func TestStranger(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be another user")
	}
	m := sharetest.New(t, 64*mib, 16*mib)
	f := m.Write("file", make([]byte, 8192))
	for uid, refused := range map[int]bool{0: false, 65534: true} {
		c := dialAs(t, f, uid)
		greet(t, c)
		fd, err := unix.MemfdCreate("handle", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		require.NoError(t, err)
		_, err = unix.Write(fd, make([]byte, 80))
		require.NoError(t, err)
		_, err = c.Call(wire.TRegister, 2, &wire.Register{Kind: uint32(gpu.ExportLegacy), Size: 4096}, &wire.RegisterReply{}, 0, fd)
		require.Error(t, err)
		require.Equal(t, refused, errors.Is(err, unix.EPERM), "uid %d: %v", uid, err)
		_, err = c.Call(wire.TPin, 3, &wire.Pin{On: 1, Owner: wire.NoOwner}, &wire.PinReply{}, 0, int(f.Fd()))
		require.Equal(t, refused, errors.Is(err, unix.EPERM), "uid %d: %v", uid, err)
		require.Equal(t, refused, err != nil)
		require.NoError(t, unix.Close(fd))
	}
}
