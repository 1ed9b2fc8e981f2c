package gputest

import (
	"bytes"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/lanefs/lanefs/gpu"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A range keeps its address and its bytes while it grows.
func testRange(t *testing.T, d *device) {
	g := d.Facts().Granularity
	if g == 0 {
		t.Skip("this device has no virtual memory management")
	}
	r, err := d.Reserve(1, 8*g)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	require.Equal(t, gpu.DeviceVMM, r.Kind())
	require.Equal(t, g, r.Size())
	require.GreaterOrEqual(t, r.Reserved(), 8*g)

	addr := r.Addr()
	d.writePattern(addr, uint64(g/8), 11)
	for size := g; size <= 8*g; size *= 2 {
		require.NoError(t, r.Grow(size))
		require.Equal(t, size, r.Size())
		require.Equal(t, addr, r.Addr())
		require.Zero(t, d.wrongWords(addr, uint64(g/8), 11), "bytes after growing to %d", size)
		d.writePattern(addr+gpu.Addr(size-g), uint64(g/8), 11)
		require.Zero(t, d.wrongWords(addr+gpu.Addr(size-g), uint64(g/8), 11), "the new part")
	}
	require.NoError(t, r.Grow(g), "growing to less is nothing to do")
	require.Equal(t, 8*g, r.Size())
	require.Error(t, r.Grow(r.Reserved()+1))
	require.Equal(t, 8*g, r.Size())
}

// What one side of an export writes the other sees, also after the exporter has closed its memory and its descriptor.
func testShare(t *testing.T, d *device) {
	const size = 1 << 20
	for _, want := range d.Facts().Exports {
		exported := 0
		for _, kind := range []gpu.MemKind{gpu.DeviceVMM, gpu.DevicePlain} {
			if d.lacks(kind) {
				continue
			}
			m, err := d.Alloc(kind, size)
			require.NoError(t, err)
			d.writePattern(m.Addr(), size/8, 21)
			e, err := m.Export(want)
			if err != nil { // another kind of memory has it
				require.ErrorContains(t, err, "allocate device-", "%s memory as a %s", kind, want)
				require.NoError(t, m.Close())
				continue
			}
			exported++
			require.GreaterOrEqual(t, e.Size, int64(size))
			require.Equal(t, want, e.Kind)
			if !slices.Contains(d.Facts().Imports, want) { // made for other drivers
				_, err := d.Import(e)
				require.Error(t, err)
				require.NoError(t, unix.Close(e.FD))
				require.NoError(t, m.Close())
				continue
			}
			i, err := d.Import(e)
			require.NoError(t, err)
			require.NoError(t, unix.Close(e.FD), "the receiver of an export owns its descriptor")
			require.Zero(t, d.wrongWords(i.Addr(), size/8, 21))
			d.writePattern(i.Addr(), size/8, 22)
			require.Zero(t, d.wrongWords(m.Addr(), size/8, 22))
			require.NoError(t, m.Close())
			require.Zero(t, d.wrongWords(i.Addr(), size/8, 22), "an import outlives the memory it came from")
			require.NoError(t, i.Close())
		}
		require.NotZero(t, exported, "some memory is exported as a %s", want)
	}
	m := d.alloc(gpu.HostPlain, size)
	for _, want := range []gpu.ExportKind{0, gpu.ExportMemFD, gpu.ExportDMABUF, gpu.ExportPOSIX, 200} {
		_, err := m.Export(want)
		require.Error(t, err, "plain host memory has no descriptor")
	}
	f, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer f.Close()
	for _, e := range []gpu.Export{
		{FD: -1, Size: 4096, Kind: d.Facts().Exports[0]},
		{FD: int(f.Fd()), Size: 4096, Kind: d.Facts().Exports[0]},
		{FD: int(f.Fd()), Size: 0, Kind: d.Facts().Exports[0]},
		{FD: int(f.Fd()), Size: 4096, Kind: 200},
	} {
		_, err := d.Import(e)
		require.Error(t, err, "%+v", e)
	}
}

func testRegister(t *testing.T, d *device) {
	b, err := unix.Mmap(-1, 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
	m, err := d.Register(b, gpu.RegisteredMemory)
	require.NoError(t, err)
	d.writePattern(m.Addr(), 1<<13, 31)
	requirePattern(t, b, 31)
	require.NoError(t, m.Close())
	requirePattern(t, b, 31) // registering does not own the bytes
	_, err = d.Register(b[1:4097], gpu.RegisteredMemory)
	require.ErrorContains(t, err, "page")
	_, err = d.Register(nil, gpu.RegisteredMemory)
	require.Error(t, err)
}

// Pages of a file that are mapped for reading only: the device copies from them what is in the file, also what others write later.
func testRegisterFile(t *testing.T, d *device) {
	const size = 1 << 16
	f, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer f.Close()
	want := make([]byte, size)
	for i := range want {
		want[i] = byte(i * 7 >> 3)
	}
	_, err = f.Write(want)
	require.NoError(t, err)
	b, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
	m, err := d.Register(b, gpu.RegisteredReadOnly)
	require.NoError(t, err)
	to := d.alloc(gpu.HostMapped, size)
	for range 2 {
		require.NoError(t, d.stream.Copy(to.Addr(), m.Addr(), size))
		require.NoError(t, d.stream.Wait(time.Minute))
		require.True(t, bytes.Equal(want, to.Host()))
		for i := range want {
			want[i] = ^want[i]
		}
		_, err = f.WriteAt(want, 0)
		require.NoError(t, err)
	}
	require.NoError(t, m.Close())
}
