package share_test

import (
	"bytes"
	"testing"
	"time"

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
	memfd := newMemfd(t, 4096)
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
	s := connect(t, f)
	fd := newMemfd(t, 4096)
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

// TestManyMappings: a program that has a thousand ranges fills the pool, and is told so. Each range that it gives back makes room for another; a change makes all that it touches stale
// by one event; and when the program has gone the next has all of the pool.
func TestManyMappings(t *testing.T) {
	const many, granule, each = 1000, 2 * mib, 4096
	m := sharetest.New(t, 64*mib, many*granule)
	f := m.Write("file", noise(9, (many+1)*each))
	s := connect(t, f)
	have := make([]*lanefs.Buffer, many)
	for i := range have {
		b, err := s.Map(f, int64(i)*each, each)
		require.NoError(t, err)
		have[i] = b
	}
	_, err := s.Map(f, many*each, each)
	require.ErrorIs(t, err, unix.ENOMEM)
	shared, err := s.Map(f, 77*each, each)
	require.NoError(t, err, "what is there needs no room")
	require.NoError(t, have[500].Close())
	have[500], err = s.Map(f, many*each, each)
	require.NoError(t, err)
	_, err = s.Map(f, 500*each, each)
	require.ErrorIs(t, err, unix.ENOMEM)
	data := noise(9, (many+1)*each)
	for i, b := range have {
		at := i * each
		if i == 500 {
			at = many * each
		}
		require.True(t, b.Current())
		require.True(t, bytes.Equal(data[at:at+each], b.Bytes()), "range %d", i)
	}
	_, err = f.WriteAt(make([]byte, 300*each), 50*each+1)
	require.NoError(t, err)
	require.NoError(t, s.Wait(time.Minute))
	require.False(t, shared.Current())
	for i, b := range have {
		require.Equal(t, i < 50 || i > 350, b.Current(), "range %d", i)
	}
	require.NoError(t, s.Close())
	settled(t, m, 0)
	other := connect(t, f)
	all, err := other.Alloc(f, many*granule)
	require.NoError(t, err)
	require.NoError(t, all.Close())
}
