package namespace_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/blockdevtest"
	"github.com/lanefs/lanefs/blockdev/namespace"
	"github.com/lanefs/lanefs/blockdev/namespace/namespacetest"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

func image(t *testing.T, size int64) string {
	path := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, os.Truncate(path, size))
	return path
}

func TestConform(t *testing.T) {
	for name, c := range map[string]struct {
		soft  softctl.Options
		lanes engine.Config
	}{
		"default":      {},
		"no lone":      {softctl.Options{NoLone: true}, engine.Config{}},
		"4096":         {softctl.Options{BlockSize: 4096}, engine.Config{}},
		"small":        {softctl.Options{MaxTransfer: 8192, Queues: 1, Depth: 3}, engine.Config{Lanes: 1}},
		"out of order": {softctl.Options{BlockSize: 1024, MaxTransfer: 64 << 10, OutOfOrder: true, Seed: 3}, engine.Config{Lanes: 2, Depth: 8}},
		"no cache":     {softctl.Options{NoWriteCache: true, Stride: 2, Version: softctl.Version20}, engine.Config{}},
	} {
		t.Run(name, func(t *testing.T) {
			blockdevtest.Conform(t, func(t *testing.T) blockdev.Device {
				return namespacetest.OpenLanes(t, image(t, 8<<20), c.soft, c.lanes)
			})
		})
	}
}

func TestInfo(t *testing.T) {
	path := image(t, 16<<20)
	d := namespacetest.OpenLanes(t, path, softctl.Options{BlockSize: 2048, MaxTransfer: 128 << 10, Queues: 3, Serial: "S1", Model: "M"},
		engine.Config{Lanes: 8, Depth: 64})
	defer d.Close()
	require.Equal(t, blockdev.Info{Name: path, Model: "M", Serial: "S1", Firmware: "1.0", NSID: 1, BlockSize: 2048, Blocks: 8192,
		MaxTransfer: 128 << 10, Queues: 3, Depth: 63, VolatileCache: true, Discard: true, WriteZeroes: true, Simulated: true,
		Pinned: namespace.DefaultPinned}, d.Info())
}

func TestReadOnlyImage(t *testing.T) {
	d := namespacetest.OpenLanes(t, image(t, 8<<20), softctl.Options{ReadOnly: true}, engine.Config{})
	b, err := d.Alloc(512)
	require.NoError(t, err)
	require.True(t, d.Info().ReadOnly)
	require.NoError(t, d.Read(0, b.Slice(0, 512)))
	require.ErrorIs(t, d.Write(0, false, b.Slice(0, 512)), blockdev.ErrReadOnly)
	b.Release()
	require.NoError(t, d.Close())
}

// TestErrorNamesWhatFailed has the controller fail one piece of a large write.
func TestErrorNamesWhatFailed(t *testing.T) {
	var rules softctl.Rules
	d := namespacetest.OpenLanes(t, image(t, 8<<20), softctl.Options{MaxTransfer: 64 << 10, Injector: &rules}, engine.Config{Retries: -1})
	write := uint8(nvme.IOWrite)
	rules.Add(softctl.Rule{Opcode: &write, Range: &[2]uint64{300, 1}, Do: softctl.Verdict{Status: softctl.Status(nvme.StatusWriteFault)}})
	b, err := d.Alloc(1 << 20)
	require.NoError(t, err)
	clear(b.Bytes())
	good := &blockdev.Request{Op: blockdev.OpWrite, Off: 2 << 20, Bufs: []blockdev.Slice{b.Slice(0, 512)}}
	bad := &blockdev.Request{Op: blockdev.OpWrite, Off: 0, Bufs: []blockdev.Slice{b.Slice(0, 1<<20)}}
	err = d.Do(good, bad)
	require.NoError(t, good.Err)
	require.Equal(t, err, bad.Err)
	var e *blockdev.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, blockdev.Error{Op: blockdev.OpWrite, Off: 256 * 512, Len: 64 << 10, LBA: 256, Err: e.Err}, *e)
	var s *nvme.StatusError
	require.ErrorAs(t, err, &s)
	require.True(t, s.Status.Is(nvme.StatusWriteFault))
	require.NotErrorIs(t, err, blockdev.ErrNoSpace)
	require.Contains(t, err.Error(), "write of 65536 bytes at 131072 (LBA 256): nvme: Write of 128 blocks at LBA 256 of namespace 1: Write Fault")
	rules.Clear()
	require.NoError(t, d.Do(bad))
	b.Release()
	require.NoError(t, d.Close())
}

// TestNoSpace: a medium without room is told from one that failed, nothing is tried again, and what was there stays.
func TestNoSpace(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("needs root, to mount a small tmpfs: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	path := filepath.Join(dir, "image")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, os.Truncate(path, 8<<20))
	var log bytes.Buffer
	d := namespacetest.OpenLanes(t, path, softctl.Options{Log: slog.New(slog.NewTextHandler(&log, nil))}, engine.Config{})
	b, err := d.Alloc(1 << 20)
	require.NoError(t, err)
	clear(b.Bytes())
	require.NoError(t, d.Write(0, true, b.Slice(0, 512<<10)))
	for _, fua := range []bool{false, true} {
		err = d.Write(2<<20, fua, b.Slice(0, 1<<20))
		require.ErrorIs(t, err, blockdev.ErrNoSpace)
		require.NotErrorIs(t, err, blockdev.ErrInvalid)
	}
	require.Equal(t, 1, strings.Count(log.String(), "no space left for the image"), "once, not for each")
	require.NoError(t, d.Flush())
	require.NoError(t, d.Discard(2<<20, 1<<20))
	require.NoError(t, d.Write(4<<20, true, b.Slice(0, 256<<10)), "there is room again")
	var s *nvme.StatusError
	require.ErrorAs(t, err, &s)
	require.True(t, s.Status.Is(nvme.StatusCapacity))
	b.Release()
	require.NoError(t, d.Close())
}

func TestForeignBuffer(t *testing.T) {
	d := namespacetest.OpenLanes(t, image(t, 8<<20), softctl.Options{}, engine.Config{})
	other := blockdev.NewMem(8<<20, 512)
	b, err := other.Alloc(4096)
	require.NoError(t, err)
	err = d.Read(0, b.Slice(0, 4096))
	require.ErrorIs(t, err, blockdev.ErrInvalid)
	require.ErrorContains(t, err, "buffer of another device")
	require.NoError(t, d.Close())
}

func TestCloseNamesLeakedBuffers(t *testing.T) {
	d := namespacetest.OpenLanes(t, image(t, 8<<20), softctl.Options{}, engine.Config{})
	b, err := d.Alloc(4096)
	require.NoError(t, err)
	require.ErrorContains(t, d.Close(), "1 buffers were not released")
	b.Bytes()[0] = 1 // still there: the memory of a buffer in use is never taken away
	require.ErrorIs(t, d.Close(), blockdev.ErrClosed)
	_, err = d.Alloc(1)
	require.ErrorIs(t, err, blockdev.ErrClosed)
	b.Release()
}

// TestSmallPool has 400 goroutines write and read over the lanes with 16 MiB of pinned memory: all wait, all get theirs.
func TestSmallPool(t *testing.T) {
	d := namespacetest.OpenLanesOf(t, image(t, 64<<20), softctl.Options{}, engine.Config{Lanes: 4}, namespace.Options{Pinned: 16 << 20})
	var wg sync.WaitGroup
	for k := range 400 {
		wg.Go(func() {
			n := 4096 << (k % 6)
			off := blockdev.Bytes(k) * 128 << 10
			for round := range 4 {
				b, err := d.Alloc(n)
				if err != nil {
					t.Errorf("goroutine %d: %v", k, err)
					return
				}
				want := bytes.Repeat([]byte{byte(k + round)}, n)
				copy(b.Bytes(), want)
				err = d.Write(off, false, b.Slice(0, n))
				clear(b.Bytes())
				if err == nil {
					err = d.Read(off, b.Slice(0, n))
				}
				if err != nil || !bytes.Equal(want, b.Bytes()[:n]) {
					t.Errorf("goroutine %d: error %v, or other bytes than written", k, err)
				}
				b.Release()
			}
		})
	}
	wg.Wait()
	require.LessOrEqual(t, d.Pinned(), int64(16<<20))
	require.NoError(t, d.Close())
}

// TestSparse checks that zeroes and discards leave holes in the image, not zero bytes on the medium.
func TestSparse(t *testing.T) {
	path := image(t, 8<<20)
	d := namespacetest.OpenLanes(t, path, softctl.Options{}, engine.Config{})
	b, err := d.Alloc(4 << 20)
	require.NoError(t, err)
	copy(b.Bytes(), bytes.Repeat([]byte{1}, 4<<20))
	require.NoError(t, d.Write(0, true, b.Slice(0, 4<<20)))
	full := allocated(t, path)
	require.NoError(t, d.WriteZeroes(0, 1<<20))
	zeroed := allocated(t, path)
	require.NoError(t, d.Do(
		&blockdev.Request{Op: blockdev.OpDiscard, Off: 1 << 20, Len: 1 << 20},
		&blockdev.Request{Op: blockdev.OpDiscard, Off: 3 << 20, Len: 1 << 20}))
	discarded := allocated(t, path)
	require.LessOrEqual(t, zeroed, full-1<<20)
	require.LessOrEqual(t, discarded, zeroed-2<<20)
	b.Release()
	require.NoError(t, d.Close())
}

// allocated is how many bytes of the file are on its medium.
func allocated(t *testing.T, path string) int64 {
	var st unix.Stat_t
	require.NoError(t, unix.Stat(path, &st))
	return st.Blocks * 512
}
