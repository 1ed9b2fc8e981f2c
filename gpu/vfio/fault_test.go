package vfio

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/host"
	"github.com/lanefs/lanefs/gpu/vfio/pci"
)

// faulty makes one call fail: the one with number at, from 0, with err.
type faulty struct {
	kernel
	at    int
	err   error
	calls []string
}

func (f *faulty) turn(format string, args ...any) error {
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
	if len(f.calls)-1 == f.at {
		return f.err
	}
	return nil
}

// request is the C name of an ioctl.
func request(r uintptr) string {
	for _, n := range numbers {
		if n.v == uint64(r) {
			return n.c
		}
	}
	return fmt.Sprintf("%#x", r)
}

func (f *faulty) access(path string) error {
	return errors.Join(f.turn("access %s", path), f.kernel.access(path))
}

func (f *faulty) open(path string) (int, error) {
	if err := f.turn("open %s", path); err != nil {
		return -1, err
	}
	return f.kernel.open(path)
}

// close and munmap do what they are for also where they report an error, as Linux does.
func (f *faulty) close(fd int) error {
	return errors.Join(f.turn("close"), f.kernel.close(fd))
}

func (f *faulty) munmap(at unsafe.Pointer, n uintptr) error {
	return errors.Join(f.turn("munmap"), f.kernel.munmap(at, n))
}

func (f *faulty) ioctl(fd int, r uintptr, arg unsafe.Pointer) (int, error) {
	if err := f.turn("%s", request(r)); err != nil {
		return 0, err
	}
	return f.kernel.ioctl(fd, r, arg)
}

func (f *faulty) ioctlValue(fd int, r, arg uintptr) (int, error) {
	if err := f.turn("%s", request(r)); err != nil {
		return 0, err
	}
	return f.kernel.ioctlValue(fd, r, arg)
}

func (f *faulty) pread(fd int, b []byte, off int64) (int, error) {
	if err := f.turn("pread"); err != nil {
		return 0, err
	}
	return f.kernel.pread(fd, b, off)
}

func (f *faulty) pwrite(fd int, b []byte, off int64) (int, error) {
	if err := f.turn("pwrite"); err != nil {
		return 0, err
	}
	return f.kernel.pwrite(fd, b, off)
}

func (f *faulty) mmap(fd int, off int64, at unsafe.Pointer, n uintptr) (unsafe.Pointer, error) {
	if err := f.turn("mmap"); err != nil {
		return nil, err
	}
	return f.kernel.mmap(fd, off, at, n)
}

func (f *faulty) reserve(n uintptr) (unsafe.Pointer, error) {
	if err := f.turn("reserve"); err != nil {
		return nil, err
	}
	return f.kernel.reserve(n)
}

func (f *faulty) eventfd() (int, error) {
	if err := f.turn("eventfd"); err != nil {
		return -1, err
	}
	return f.kernel.eventfd()
}

// life is everything that is done with a function from Open to Close. It gives back what it has, whatever fails.
func life(m machine, addr string, way Backend, pages, file gpu.Memory) (err error) {
	d, err := m.take(addr, Options{Backend: way})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	var mapped []IOVA
	defer func() {
		for _, a := range mapped {
			err = errors.Join(err, d.Unmap(a))
		}
	}()
	for _, mem := range []gpu.Memory{pages, file} {
		a, err := d.Map(mem, 0, mem.Size())
		if err != nil {
			return err
		}
		mapped = append(mapped, a)
	}
	export := func() (gpu.Export, error) { return file.Export(gpu.ExportMemFD) }
	if way == IOMMUFD {
		export = func() (gpu.Export, error) { return d.Export(0, 0, 4096) }
	}
	e, err := export()
	if err != nil {
		return err
	}
	defer unix.Close(e.FD)
	a, err := d.insert(4096, func(at uint64) error { return d.mapExport(at, e, 0, 4096) })
	if err != nil {
		return err
	}
	mapped = append(mapped, a)
	return d.Reset()
}

// memories are one of anonymous pages and one of a file.
func memories(t *testing.T, n int64) (pages, file gpu.Memory) {
	rt, err := host.Open(host.Options{})
	require.NoError(t, err)
	pages, err = rt.Alloc(gpu.HostMapped, n)
	require.NoError(t, err)
	file, err = rt.Alloc(gpu.DeviceFine, n)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, errors.Join(pages.Close(), file.Close(), rt.Close())) })
	return pages, file
}

// harmless calls may fail without an error: a look at what the other backend offers; the second interrupt,
// which only PCI Express functions have.
func harmless(calls []string, at int) bool {
	if strings.HasPrefix(calls[at], "access ") {
		return true
	}
	second := 0
	for i, c := range calls[:at+1] {
		if c == "eventfd" {
			if second++; second == 2 {
				return at == i || at == i+1 && calls[at] == request(ioSetIRQs)
			}
		}
	}
	return len(calls) > 1 && at == len(calls)-1 && calls[at] == "close" && second == 2 && calls[at-1] == request(ioSetIRQs)
}

// sweep fails each call of a life in turn. After each nothing may be left, and the error must be one that says so.
func sweep(t *testing.T, m machine, addr string, way Backend, left func() []string) {
	pages, file := memories(t, 64<<10)
	clean := &faulty{kernel: m.kernel, at: -1}
	require.NoError(t, life(machine{clean, m.pci}, addr, way, pages, file))
	require.Empty(t, left())
	require.Greater(t, len(clean.calls), 25)
	for at, call := range clean.calls {
		f := &faulty{kernel: m.kernel, at: at, err: unix.EIO}
		err := life(machine{f, m.pci}, addr, way, pages, file)
		name := fmt.Sprintf("call %d, %s", at, call)
		require.Equal(t, call, f.calls[at], "a life takes the same way each time")
		require.Empty(t, left(), name)
		if harmless(clean.calls, at) {
			continue
		}
		require.ErrorIs(t, err, unix.EIO, name)
		if strings.HasPrefix(call, "VFIO_") || strings.HasPrefix(call, "IOMMU_") {
			require.Contains(t, err.Error(), call, "the error names what failed")
		}
	}
	require.NoError(t, life(m, addr, way, pages, file), "after all that")
	require.Empty(t, left())
	t.Logf("%s: %d calls failed, one at a time", way, len(clean.calls))
}

// Whatever call of the kernel's fails half way, everything before it is undone.
func TestFaults(t *testing.T) {
	for _, way := range []Backend{IOMMUFD, Type1} {
		t.Run(string(way), func(t *testing.T) {
			m, d := newDouble(t, way)
			sweep(t, m, testAddr, way, d.left)
		})
	}
}

// The same with a real function, in the lab: LANEFS_TEST_VFIO is its address.
func TestFaultsOnHardware(t *testing.T) {
	addr := os.Getenv("LANEFS_TEST_VFIO")
	if addr == "" {
		t.Skip("SKIP: no PCI function to try system calls on (LANEFS_TEST_VFIO; make lab has one)")
	}
	f, err := thisMachine.pci.Function(pci.Address(addr))
	require.NoError(t, err)
	ways, why := Offered(f)
	require.NotEmpty(t, ways, "%v", why)
	for _, way := range ways {
		t.Run(string(way), func(t *testing.T) { sweep(t, thisMachine, addr, way, held) })
	}
}

// held is what this process holds of VFIO's and IOMMUFD's.
func held() (all []string) {
	ours := func(s string) bool {
		return strings.Contains(s, "/dev/vfio") || strings.Contains(s, "/dev/iommu") || strings.Contains(s, "anon_inode:[vfio") ||
			strings.Contains(s, "dmabuf")
	}
	files, _ := filepath.Glob("/proc/self/fd/*")
	for _, f := range files {
		if to, _ := os.Readlink(f); ours(to) {
			all = append(all, to+" is open")
		}
	}
	maps, _ := os.ReadFile("/proc/self/maps")
	for line := range strings.Lines(string(maps)) {
		if ours(line) {
			all = append(all, "mapped: "+strings.TrimSpace(line))
		}
	}
	return all
}

// What Close does, in the order it does it.
func TestCloseOrder(t *testing.T) {
	for way, want := range map[Backend][]string{
		IOMMUFD: {"pread", "pwrite", "munmap", request(ioDetachPT), "close", "close"},
		Type1:   {"pread", "pwrite", "munmap", "close", request(ioGroupUnset), "close", "close"},
	} {
		m, d := newDouble(t, way)
		f := &faulty{kernel: d, at: -1}
		dev, err := (machine{f, m.pci}).take(testAddr, Options{})
		require.NoError(t, err)
		require.Equal(t, way, dev.Backend(), "what the machine offers")
		var command [2]byte
		unix.Pread(d.device, command[:], testConfig+commandOffset)
		require.EqualValues(t, commandMemory|commandMaster, command[0], "memory space and bus mastering are on")
		f.calls = nil
		require.NoError(t, dev.Close())
		require.Equal(t, want, f.calls)
		require.NoError(t, dev.Close(), "a second time")
		require.Equal(t, want, f.calls, "does nothing")
	}
}

// withoutGroup is the kernel after the function was unplugged: the group has left its container with it.
type withoutGroup struct{ *double }

func (k withoutGroup) ioctlValue(fd int, request, value uintptr) (int, error) {
	n, err := k.double.ioctlValue(fd, request, value)
	if request == ioGroupUnset && err == nil {
		err = unix.EINVAL
	}
	return n, err
}

// A group that the kernel has taken out of its container is no error of Close.
func TestCloseAfterUnplug(t *testing.T) {
	m, d := newDouble(t, Type1)
	dev, err := (machine{withoutGroup{d}, m.pci}).take(testAddr, Options{})
	require.NoError(t, err)
	require.NoError(t, dev.Close())
}

// Whether device memory is still reachable is asked after each batch that moved data there: one system call.
func TestReachableCost(t *testing.T) {
	m, d := newDouble(t, IOMMUFD)
	f := &faulty{kernel: d, at: -1}
	dev, err := (machine{f, m.pci}).take(testAddr, Options{})
	require.NoError(t, err)
	f.calls = nil
	require.NoError(t, dev.Reachable())
	require.Equal(t, []string{"pread"}, f.calls)
	require.NoError(t, dev.Close())
}
