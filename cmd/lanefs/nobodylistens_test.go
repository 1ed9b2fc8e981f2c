package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/wire"
	lanefs "github.com/lanefs/lanefs/sdk/go"
)

// TestNobodyListens: a daemon that ends may have answered where its socket is, and closed that before the program comes to it. Then the daemon has gone, by
// all three SDKs; a socket that is only out of reach, as in a container, is not that.
func TestNobodyListens(t *testing.T) {
	for _, tool := range []string{"cc", "python3"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("needs cc and python3: make deps installs them")
		}
	}
	p := newPlace(t)
	build := libraries(t)
	image, dir := p.image("image", 64), p.mkdir("mnt")
	p.ok("mount", "--gpu", "host", image, dir)
	f, err := os.Create(filepath.Join(dir, "file"))
	require.NoError(t, err)
	defer f.Close()
	var name [256]byte
	n, err := unix.Fgetxattr(int(f.Fd()), wire.ShareAttr, name[:])
	require.NoError(t, err)
	socket := string(name[:n])
	// How connecting fails, by Go's, Python's and C's.
	fails := func(is, isNot error, errno string) {
		_, err := lanefs.Connect(f)
		require.ErrorIs(t, err, is)
		require.NotErrorIs(t, err, isNot)
		cmd := pythonProgram(p, `
import ctypes, errno, lanefs, os
try:
    lanefs.Session.of(0)
    print("connected")
except OSError as e:
    print(errno.errorcode[e.errno], isinstance(e, lanefs.NotLaneFS))
c = ctypes.CDLL(os.environ["LANEFS_LIBRARY"], use_errno=True)
c.lanefs_connect.restype = ctypes.c_void_p
print(c.lanefs_connect(0), errno.errorcode[ctypes.get_errno()])`, f.Name(), libraryOf(build))
		cmd.Stdin = f
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Equal(t, errno+" False\nNone "+errno+"\n", string(out))
	}
	require.NoError(t, os.Rename(socket, socket+".away"))
	fails(syscall.ENOENT, lanefs.ErrGone, "ENOENT")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	fails(lanefs.ErrGone, lanefs.ErrNotLaneFS, "ECONNRESET")
	require.NoError(t, os.Rename(socket+".away", socket))
	c, err := lanefs.Connect(f)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.NoError(t, f.Close())
	p.ok("umount", dir)
}
