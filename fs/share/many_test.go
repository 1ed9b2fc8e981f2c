package share_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/sharetest"
	"github.com/lanefs/lanefs/fs/share/wire"
	"github.com/lanefs/lanefs/gpu"
	lanefs "github.com/lanefs/lanefs/sdk/go"
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

// TestGivenBack: what a connection may have at once it may have again and again.
func TestGivenBack(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	f := m.Write("file", []byte("x"))
	s, err := lanefs.Connect(f)
	require.NoError(t, err)
	defer s.Close()
	fd, err := unix.MemfdCreate("m", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Ftruncate(fd, 4096))
	for what, c := range map[string]struct {
		most int
		get  func() (interface{ Close() error }, error)
	}{
		"files": {1024, func() (interface{ Close() error }, error) { return s.Open(f) }},
		"memories": {256, func() (interface{ Close() error }, error) {
			return s.Register(gpu.Export{FD: fd, Size: 4096, Kind: gpu.ExportMemFD})
		}},
		"rings": {8, func() (interface{ Close() error }, error) { return s.NewRing(1) }},
	} {
		var have []interface{ Close() error }
		for range 2 * c.most {
			h, err := c.get()
			require.NoError(t, err, what)
			if have = append(have, h); len(have) == c.most {
				_, err = c.get()
				require.ErrorIs(t, err, unix.EMFILE, "more %s than %d", what, c.most)
				for _, h := range have {
					require.NoError(t, h.Close())
				}
				have = nil
			}
		}
	}
}
