package namespace_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/blockdevtest"
	"github.com/lanefs/lanefs/blockdev/md"
	"github.com/lanefs/lanefs/blockdev/md/mdtest"
	"github.com/lanefs/lanefs/blockdev/namespace"
	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/host"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// mapper is a software controller that counts what is mapped for it, and refuses when told to.
type mapper struct {
	*softctl.Controller
	mapped   int
	borrowed []nvme.IOVA
	fail     error
}

func (m *mapper) Borrowed(at nvme.IOVA) { m.borrowed = append(m.borrowed, at) }

func (m *mapper) Map(g gpu.Memory, off, n int64) (nvme.IOVA, error) {
	if m.fail != nil {
		return 0, m.fail
	}
	at, err := m.Controller.Map(g, off, n)
	if err == nil {
		m.mapped++
	}
	return at, err
}

func (m *mapper) Unmap(at nvme.IOVA) error {
	m.mapped--
	return m.Controller.Unmap(at)
}

// drives are software controllers of members of an md array, 16 MiB each, on one runtime.
func drives(t *testing.T, n int) (rt gpu.Runtime, on []namespace.On, maps []*mapper) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	rt, err := host.Open(host.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close()) })
	a := mdtest.Array{Set: 1, Minor: 2, Chunk: 128, Disks: n}
	for i := range n {
		path := filepath.Join(t.TempDir(), fmt.Sprint("member", i))
		f, err := os.Create(path)
		require.NoError(t, err)
		require.NoError(t, f.Truncate(16<<20))
		require.NoError(t, a.Write(f, 16<<20, i))
		require.NoError(t, f.Close())
		soft, err := softctl.Open(path, softctl.Options{Log: log})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, soft.Close()) })
		m := &mapper{Controller: soft}
		c, err := controller.Open(controller.Config{Runtime: rt, Transport: m, Log: log})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, c.Close()) })
		e, err := engine.New(c, engine.Config{Lanes: 2})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, e.Close()) })
		on, maps = append(on, namespace.On{Engine: e, NSID: 1}), append(maps, m)
	}
	return rt, on, maps
}

// TestTogether: an array of namespaces that were opened together, behind a controller each, is a block device like any other.
func TestTogether(t *testing.T) {
	blockdevtest.Conform(t, func(t *testing.T) blockdev.Device {
		_, on, _ := drives(t, 2)
		devs, err := namespace.OpenAll(on, namespace.Options{})
		require.NoError(t, err)
		t.Cleanup(func() {
			for _, d := range devs {
				require.NoError(t, d.Close())
			}
		})
		d, err := md.Open([]md.Member{{Name: "a", Dev: devs[0]}, {Name: "b", Dev: devs[1]}})
		require.NoError(t, err)
		return d
	})
}

// TestTogetherMaps: each controller maps what the pool pins and what is attached, no more than once, and lets go of all of it; one that
// cannot map leaves nothing with the others.
func TestTogetherMaps(t *testing.T) {
	rt, on, maps := drives(t, 3)
	queues := []int{maps[0].mapped, maps[1].mapped, maps[2].mapped}
	extra := func() (all []int) {
		for i, m := range maps {
			all = append(all, m.mapped-queues[i])
		}
		return all
	}
	devs, err := namespace.OpenAll(on, namespace.Options{})
	require.NoError(t, err)
	none := extra()
	require.Equal(t, none[0], none[1])
	b, err := devs[2].Alloc(3 << 20)
	require.NoError(t, err)
	one := extra()
	require.Equal(t, []int{none[0] + 1, none[0] + 1, none[0] + 1}, one)
	for i, d := range devs { // each takes the others' buffers
		copy(b.Bytes(), fmt.Sprintf("written by %d", i))
		require.NoError(t, d.Write(8<<20, false, b.Slice(0, 4096)))
		clear(b.Bytes()[:4096])
		require.NoError(t, d.Read(8<<20, b.Slice(4096, 4096)))
		require.Equal(t, fmt.Sprintf("written by %d", i), string(b.Bytes()[4096:4096+12]))
	}
	refused := errors.New("no more mappings")
	maps[1].fail = refused
	_, err = devs[0].Alloc(8<<20, blockdev.ForData|blockdev.NoWait)
	require.ErrorContains(t, err, "no more mappings")
	require.Equal(t, one, extra())
	g, err := rt.Alloc(gpu.HostMapped, 64<<10)
	require.NoError(t, err)
	_, err = devs[0].Attach(g)
	require.ErrorIs(t, err, refused)
	require.Equal(t, one, extra())
	maps[1].fail = nil
	for _, m := range maps {
		m.borrowed = nil
	}
	at, err := devs[1].Attach(g)
	require.NoError(t, err)
	require.NoError(t, devs[0].Read(8<<20, at.Slice(0, 4096)))
	require.Equal(t, "written by 0", string(g.Host()[:12]))
	for _, m := range maps {
		require.Len(t, m.borrowed, 1, "what is attached is another's, and the pool's own is not")
	}
	at.Release()
	require.NoError(t, g.Close())
	require.Equal(t, one, extra())

	b.Release()
	for i, d := range devs {
		require.NoError(t, d.Close())
		if i < 2 {
			require.Equal(t, one, extra(), "the last one closes")
		}
	}
	require.Equal(t, []int{0, 0, 0}, extra())

	maps[2].fail = refused
	devs, err = namespace.OpenAll(on, namespace.Options{})
	if err == nil { // nothing was pinned yet
		_, err = devs[0].Alloc(4096, blockdev.ForData|blockdev.NoWait)
		for _, d := range devs {
			require.NoError(t, d.Close())
		}
	}
	require.ErrorContains(t, err, "no more mappings")
	require.Equal(t, []int{0, 0, 0}, extra())
}
