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

// TestPin: what is pinned takes its memory, though nobody holds it, until it no longer is.
func TestPin(t *testing.T) {
	m := sharetest.New(t, 64*mib, 8*mib)
	f := m.Write("file", noise(1, 3*mib))
	s := connect(t, f)
	n, err := s.Pin(f, true, -1)
	require.NoError(t, err)
	require.EqualValues(t, 3*mib, n)
	_, err = s.Alloc(f, 6*mib)
	require.ErrorIs(t, err, unix.ENOMEM)
	_, err = s.Pin(f, false, -1)
	require.NoError(t, err)
	b, err := s.Alloc(f, 6*mib)
	require.NoError(t, err)
	require.NoError(t, b.Close())
}

// TestHeld: an ordinary user holds half of the pool, to the granule. What is refused evicts nothing, though it would have found room; what is given back may be had again.
func TestHeld(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be another user")
	}
	const granule = 2 * mib
	m := sharetest.New(t, 64*mib, 7*granule)
	require.EqualValues(t, granule, m.Pool.Granule())
	f := m.Write("file", noise(1, 4*granule))
	call := func(c *wire.Conn, q wire.Map) (uint32, error) {
		var r wire.MapReply
		rights, err := c.Call(wire.TMap, 1, &q, &r, 1, int(f.Fd()))
		wire.CloseAll(rights)
		return r.Handle, err
	}
	release := func(c *wire.Conn, handle uint32) {
		_, err := c.Call(wire.TRelease, 1, &wire.Release{Handle: handle}, nil, 0)
		require.NoError(t, err)
	}
	root := dial(t, f)
	greet(t, root)
	h, err := call(root, wire.Map{Len: 4 * granule})
	require.NoError(t, err)
	release(root, h)
	c := dialAs(t, f, 65534)
	greet(t, c)
	held := func() int64 {
		for _, u := range m.Share.Usage() {
			if u.UID == 65534 {
				return u.Held
			}
		}
		return -1
	}
	const empty = wire.MapPrivate | wire.MapEmpty
	for range 3 {
		h, err = call(c, wire.Map{Len: 2*granule + 1, Flags: empty})
		require.NoError(t, err)
		require.EqualValues(t, 3*granule, held())
		for what, q := range map[string]wire.Map{
			"new":      {Len: 1, Flags: empty},
			"a copy":   {Len: 1, Flags: wire.MapPrivate},
			"there":    {Len: 1},
			"to share": {Len: 4*granule - 1},
		} {
			_, err = call(c, q)
			require.ErrorIs(t, err, unix.ENOMEM, what)
			require.ErrorContains(t, err, "share_held", what)
			require.EqualValues(t, 3*granule, held(), what)
			require.Zero(t, m.Pool.Stats().Evicted, what)
		}
		release(c, h)
		require.Zero(t, held())
	}
	_, err = call(c, wire.Map{Len: 3 * granule, Flags: empty})
	require.NoError(t, err)
	_, err = call(root, wire.Map{Off: 1, Len: granule})
	require.NoError(t, err)
	require.Len(t, m.Pool.Stats().Residents, 1)
	_, err = f.WriteAt([]byte{1}, 4*granule-1) // root's range is not there any more
	require.NoError(t, err)
	_, err = call(c, wire.Map{Off: 5, Len: 1})
	require.ErrorIs(t, err, unix.ENOMEM)
	require.ErrorContains(t, err, "share_held")
	require.EqualValues(t, 3*granule, held())
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
