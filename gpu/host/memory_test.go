package host

import (
	"os"
	"testing"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/hugepage"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestDeviceMemoryIsLimited(t *testing.T) {
	r, err := Open(Options{Memory: 8 << 20})
	require.NoError(t, err)
	a, err := r.Alloc(gpu.DevicePlain, 5<<20)
	require.NoError(t, err)
	_, err = r.Alloc(gpu.DeviceFine, 3<<20+1)
	require.ErrorContains(t, err, "asked for 3149824 bytes, 3145728 of 8388608 are free")
	h, err := r.Alloc(gpu.HostMapped, 64<<20)
	require.NoError(t, err, "host memory is not the device's")

	v, err := r.Reserve(2<<20, 1<<30)
	require.NoError(t, err, "reserving costs nothing")
	require.ErrorContains(t, v.Grow(4<<20), "out of device memory")
	require.Equal(t, int64(2<<20), v.Size())
	require.NoError(t, a.Close())
	require.NoError(t, v.Grow(8<<20))
	_, err = r.Alloc(gpu.DevicePlain, 1)
	require.Error(t, err)
	require.NoError(t, v.Close())
	a, err = r.Alloc(gpu.DevicePlain, 8<<20)
	require.NoError(t, err, "everything was given back")

	require.ErrorContains(t, r.Close(), "2 memories")
	require.NoError(t, a.Close())
	require.NoError(t, h.Close())
	require.Zero(t, r.used.Load())
	_, err = Open(Options{Memory: -1})
	require.Error(t, err)
}

// Memory of the pool's size can consist of huge pages: it begins at one (`hugepage.New` also asks for them).
func TestHugePages(t *testing.T) {
	r, err := Open(Options{})
	require.NoError(t, err)
	for _, n := range []int64{2 << 20, 6<<20 + 4096} {
		m, err := r.Alloc(gpu.HostMapped, n)
		require.NoError(t, err)
		require.Zero(t, int64(m.Addr())%(2<<20), "%d bytes", n)
		require.NoError(t, m.Close())
	}
	require.NoError(t, r.Close())
}

// A program that hands us a memfd must not be able to kill us by shrinking it.
func TestImportSeals(t *testing.T) {
	r, err := Open(Options{})
	require.NoError(t, err)
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Ftruncate(fd, 3*4096))

	for _, e := range []gpu.Export{{Offset: 4096, Size: 2*4096 + 1}, {Offset: 4 * 4096, Size: 1}, {Offset: 1, Size: 1},
		{Offset: -4096, Size: 4096}, {Offset: 1<<62 + 4096, Size: 1 << 40}} {
		e.FD, e.Kind = fd, gpu.ExportMemFD
		_, err := r.Import(e)
		require.Error(t, err, "%+v", e)
	}
	m, err := r.Import(gpu.Export{FD: fd, Offset: 4096, Size: 2 * 4096, Kind: gpu.ExportMemFD})
	require.NoError(t, err)
	require.ErrorIs(t, unix.Ftruncate(fd, 4096), unix.EPERM)
	m.Host()[8191] = 7
	b := make([]byte, 1)
	_, err = unix.Pread(fd, b, 3*4096-1)
	require.NoError(t, err)
	require.Equal(t, byte(7), b[0])
	e, err := m.Export(gpu.ExportMemFD)
	require.NoError(t, err)
	require.Equal(t, int64(4096), e.Offset, "an export of an import says where it begins")
	require.NoError(t, unix.Close(e.FD))
	require.NoError(t, m.Close())

	unsealable, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	defer unix.Close(unsealable)
	require.NoError(t, unix.Ftruncate(unsealable, 4096))
	_, err = r.Import(gpu.Export{FD: unsealable, Size: 4096, Kind: gpu.ExportMemFD})
	require.ErrorContains(t, err, "F_SEAL_SHRINK")
	require.NoError(t, r.Close())
}

// Nothing stays behind: no descriptor and no mapping.
func TestNoLeaks(t *testing.T) {
	r, err := Open(Options{})
	require.NoError(t, err)
	before := descriptors(t)
	for range 50 {
		for kind := gpu.HostMapped; kind <= gpu.DevicePlain; kind++ {
			m, err := r.Alloc(kind, 1<<20)
			require.NoError(t, err)
			require.NoError(t, m.Close())
		}
		_, err := r.Alloc(gpu.DevicePlain, 1<<60)
		require.Error(t, err)
		_, err = r.Import(gpu.Export{FD: 0, Size: 1 << 20, Kind: gpu.ExportMemFD})
		require.Error(t, err)
		_, err = r.Load([]byte("\x7fELF"))
		require.Error(t, err)
	}
	require.Equal(t, before, descriptors(t))
	require.NoError(t, r.Close())
}

func descriptors(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

// A copy to a wrong address is an error, not a crash.
func TestCopyChecksAddresses(t *testing.T) {
	r, err := Open(Options{})
	require.NoError(t, err)
	s, err := r.NewStream()
	require.NoError(t, err)
	m, err := r.Alloc(gpu.HostMapped, 4096)
	require.NoError(t, err)
	a := m.Addr()
	for _, c := range []struct {
		dst, src gpu.Addr
		n        int64
	}{{0, a, 1}, {a, 0, 1}, {a, a, 4097}, {a + 4096, a, 1}, {a - 1, a, 1}, {a, a, -1}, {a, ^gpu.Addr(0), 2}} {
		require.Error(t, s.Copy(c.dst, c.src, c.n), "%+v", c)
	}
	require.Error(t, s.Fill(a+1, 0, 4096))
	require.NoError(t, s.Copy(a, a+2048, 2048))
	require.NoError(t, m.Close())
	require.Error(t, s.Fill(a, 0, 1), "closed memory is no longer there")
	require.NoError(t, s.Close())
	require.NoError(t, r.Close())
}

// TestPopulate: the pages of memory that is about to be filled are there at once, and no others; memory that was imported has them from its owner.
func TestPopulate(t *testing.T) {
	r, err := Open(Options{Memory: 64 << 20})
	require.NoError(t, err)
	huge := hugepage.Size()
	if huge == 0 {
		t.Skip("SKIPPED: no huge pages")
	}
	for _, kind := range []gpu.MemKind{gpu.DeviceVMM, gpu.DevicePlain} {
		a, err := r.Alloc(kind, 4*huge)
		require.NoError(t, err)
		m := a.(*memory)
		m.Populate(2*huge + 5)
		var st unix.Stat_t
		require.NoError(t, unix.Fstat(m.fd, &st))
		if has := st.Blocks * 512; has < 2*huge {
			t.Logf("this kernel makes no huge pages of a memfd: %d bytes", has)
		} else {
			require.Equal(t, 2*huge, has)
		}
		require.NotZero(t, st.Blocks)
		require.Equal(t, make([]byte, 4*huge), a.Host())
		require.NoError(t, a.Close())
	}
	h, err := r.Alloc(gpu.HostMapped, 4*huge)
	require.NoError(t, err)
	h.(*memory).Populate(4 * huge) // no file
	require.NoError(t, h.Close())
	require.NoError(t, r.Close())
}
