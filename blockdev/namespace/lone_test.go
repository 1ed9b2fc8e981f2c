package namespace_test

import (
	"bytes"
	"os"
	"runtime/trace"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/blockdevtest"
	"github.com/lanefs/lanefs/blockdev/blockdevtest/looptest"
	"github.com/lanefs/lanefs/blockdev/namespace/namespacetest"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// loop makes a loop device over a file of its own.
func loop(t *testing.T, size int64, options ...string) (dev, file string) {
	t.Helper()
	file = image(t, size)
	dev, _ = looptest.Attach(t, file, options...)
	return dev, file
}

// A block device behind lanes, where lone commands take no lane, passes the suite.
func TestConformBlockDevice(t *testing.T) {
	for name, options := range map[string][]string{"512": nil, "4096": {"-b", "4096"}} {
		t.Run(name, func(t *testing.T) {
			blockdevtest.Conform(t, func(t *testing.T) blockdev.Device {
				dev, _ := loop(t, 8<<20, options...)
				return namespacetest.OpenLanes(t, dev, softctl.Options{}, engine.Config{Lanes: 2})
			})
		})
	}
}

// A lone read is timed in each layer, allocates nothing, and goes the long way while a trace is recorded.
func TestLoneTimes(t *testing.T) {
	dev, _ := loop(t, 1<<20)
	for name, on := range map[string]string{"block device": dev, "image": image(t, 1<<20)} {
		t.Run(name, func(t *testing.T) { testLoneTimes(t, on) })
	}
}

func testLoneTimes(t *testing.T, dev string) {
	d := namespacetest.OpenLanes(t, dev, softctl.Options{}, engine.Config{Lanes: 2})
	defer d.Close()
	buf, err := d.Alloc(4096)
	require.NoError(t, err)
	defer buf.Release()
	r := &blockdev.Request{Op: blockdev.OpRead, Bufs: []blockdev.Slice{buf.Slice(0, 4096)}}
	require.Zero(t, testing.AllocsPerRun(50, func() { require.NoError(t, d.Do(r)) }))
	count := map[string]uint64{}
	for _, s := range d.Times() {
		require.Equal(t, "read", s.Kind)
		count[s.Layer] = s.Count
	}
	require.Equal(t, map[string]uint64{"device": 51, "lanes": 51, "controller": 51}, count)
	if trace.IsEnabled() {
		return // by go test -trace
	}
	var log bytes.Buffer
	require.NoError(t, trace.Start(&log))
	defer trace.Stop()
	require.NoError(t, d.Do(r))
}

// A lone read or write that fails is that of the long way, whose error and log name what failed.
func TestLoneFails(t *testing.T) {
	dev, file := loop(t, 1<<20)
	d := namespacetest.OpenLanes(t, dev, softctl.Options{}, engine.Config{Lanes: 2})
	defer d.Close()
	buf, err := d.Alloc(4096)
	require.NoError(t, err)
	defer buf.Release()
	require.NoError(t, d.Read(1<<19, buf.Slice(0, 4096)))
	require.NoError(t, os.Truncate(file, 1<<19))
	var failed *blockdev.Error
	require.ErrorAs(t, d.Read(1<<19, buf.Slice(0, 4096)), &failed)
	require.EqualValues(t, 1<<10, failed.LBA)
	require.ErrorContains(t, failed, "Unrecovered Read Error")
	require.NoError(t, d.Read(0, buf.Slice(0, 4096)))
	require.ErrorIs(t, d.Read(1<<20, buf.Slice(0, 4096)), blockdev.ErrInvalid)
	require.ErrorIs(t, d.Read(1, buf.Slice(0, 4096)), blockdev.ErrInvalid)
	require.ErrorIs(t, d.Read(0, buf.Slice(0, 100)), blockdev.ErrInvalid)
	require.ErrorIs(t, d.Read(0, buf.Slice(4092, 512)), blockdev.ErrInvalid)
	require.ErrorIs(t, d.Read(-512, buf.Slice(0, 512)), blockdev.ErrInvalid)
}
