package share_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/sharetest"
	"github.com/lanefs/lanefs/fs/share/wire"
	"github.com/lanefs/lanefs/gpu"
)

// TestManyRegistered: as many pages registered as a daemon's descriptors allow do not keep the unmount.
func TestManyRegistered(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	f := m.Write("file", []byte("x"))
	memfd, err := unix.MemfdCreate("m", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	defer unix.Close(memfd)
	require.NoError(t, unix.Ftruncate(memfd, 4096))
	for range 40 {
		c := dial(t, f)
		greet(t, c)
		for i := range 256 {
			_, err := c.Call(wire.TRegister, uint32(i), &wire.Register{Kind: uint32(gpu.ExportMemFD), Size: 4096}, &wire.RegisterReply{}, 0, memfd)
			require.NoError(t, err)
		}
		_, err := c.Call(wire.TRegister, 300, &wire.Register{Kind: uint32(gpu.ExportMemFD), Size: 4096}, &wire.RegisterReply{}, 0, memfd)
		require.ErrorIs(t, err, unix.EMFILE)
	}
	f.Close()
	within(t, "the unmount", m.Close)
}
