package vfio

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu/vfio/pci"
)

// double is a kernel with one NVMe function, 0000:00:03.0 of IOMMU group 3, that vfio-pci has. Its files are memfds, so
// that reads, writes and mappings of them are the real kernel's; what ioctls do is modelled, and what a real kernel would
// refuse, or what leaves things in the wrong order, is refused or noted.
type double struct {
	linux
	usable    []interval  // IOVAs that the IOMMU translates
	pageSizes uint64      // of the IOMMU
	page      int64       // of the CPU, if it is not this machine's
	sparse    [][2]uint64 // of BAR 0; nil: all of it can be mapped
	noReset   bool
	wrong     []string // what was done in the wrong order

	mu       sync.Mutex // protects what follows, and wrong
	nodes    map[string]bool
	files    map[int]string // descriptors: the path, or what it is
	device   int            // a memfd: the BAR, then the configuration space
	attached bool           // IOMMUFD: bound and attached; type1: the group is in the container
	typed    bool           // type1: the container has its IOMMU driver
	mapped   map[uint64]uint64
	views    map[uintptr]uintptr
	signals  map[uint32]int // eventfds by interrupt
}

const (
	testAddr   = "0000:00:03.0"
	testBAR    = 16 << 10
	testConfig = int64(testBAR) // where in the device's file
)

var testNodes = map[Backend][]string{
	IOMMUFD: {iommuNode, deviceNodes + "/vfio0"},
	Type1:   {containerNode, vfioNodes + "/3"},
}

// newDouble is a machine that offers one backend.
func newDouble(t *testing.T, way Backend) (machine, *double) {
	root := t.TempDir()
	dir := filepath.Join(root, "sys/bus/pci/devices", testAddr)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "vfio-dev/vfio0"), 0o755))
	for name, text := range map[string]string{"class": "0x010802", "vendor": "0x1b36", "device": "0x0010",
		"resource": "0x0000000100000000 0x00000001003fffff 0x0000000000140204"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o644))
	}
	require.NoError(t, os.Symlink("../../../bus/pci/drivers/vfio-pci", filepath.Join(dir, "driver")))
	require.NoError(t, os.Symlink("../../../kernel/iommu_groups/3", filepath.Join(dir, "iommu_group")))
	require.NoError(t, os.MkdirAll(filepath.Join(root, deviceNodes), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(root, deviceNodes, "vfio0"), nil, 0o644))

	d := &double{usable: intel39, pageSizes: 0xfffffffffffff000, nodes: map[string]bool{}, files: map[int]string{},
		mapped: map[uint64]uint64{}, views: map[uintptr]uintptr{}, signals: map[uint32]int{}}
	for _, n := range testNodes[way] {
		d.nodes[n] = true
	}
	d.device = memfd(t, testBAR+4096)
	t.Cleanup(func() {
		unix.Close(d.device)
		for _, fd := range d.signals {
			unix.Close(fd)
		}
	})
	return machine{d, pci.System{Root: root}}, d
}

func memfd(t *testing.T, n int64) int {
	fd, err := unix.MemfdCreate("double", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(fd, n))
	return fd
}

// left is what was not given back, and what was given back in the wrong order.
func (d *double) left() (all []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, what := range d.files {
		all = append(all, what+" is open")
	}
	for iova, n := range d.mapped {
		all = append(all, fmt.Sprintf("%d bytes are mapped at %#x", n, iova))
	}
	for at, n := range d.views {
		all = append(all, fmt.Sprintf("%d bytes of address space are taken at %#x", n, at))
	}
	return append(all, d.wrong...)
}

func (d *double) note(format string, args ...any) {
	d.wrong = append(d.wrong, fmt.Sprintf(format, args...))
}

// has says whether a descriptor of that kind is open.
func (d *double) has(what string) bool {
	for _, w := range d.files {
		if w == what {
			return true
		}
	}
	return false
}

func (d *double) pageSize() int64 {
	if d.page != 0 {
		return d.page
	}
	return d.linux.pageSize()
}

const deviceFile = "the device"

func (d *double) access(path string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.nodes[path] {
		return unix.ENOENT
	}
	return nil
}

func (d *double) open(path string) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.nodes[path] {
		return -1, unix.ENOENT
	}
	if path == iommuNode || path == containerNode {
		return d.dup(d.device, path)
	}
	if d.has(deviceFile) || d.has(path) {
		return -1, unix.EBUSY
	}
	if strings.HasPrefix(path, deviceNodes) {
		path = deviceFile
	}
	return d.dup(d.device, path)
}

func (d *double) dup(of int, what string) (int, error) {
	fd, err := unix.FcntlInt(uintptr(of), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		d.files[fd] = what
	}
	return fd, err
}

func (d *double) close(fd int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch what := d.files[fd]; what {
	case deviceFile:
		if d.nodes[iommuNode] {
			d.attached = false // with its last descriptor
		}
		command := []byte{0, 0}
		unix.Pwrite(d.device, command, testConfig+commandOffset)
	case iommuNode, containerNode:
		if d.attached {
			d.note("%s was closed with the device in it", what)
		}
		d.typed = false
		clear(d.mapped)
	case vfioNodes + "/3":
		if d.has(deviceFile) {
			d.note("the group was closed before its device")
		}
		d.attached = false
	case "":
		if d.nodes[iommuNode] || d.nodes[containerNode] { // an eventfd
			return d.linux.close(fd)
		}
	}
	delete(d.files, fd)
	return d.linux.close(fd)
}

func (d *double) mmap(fd int, off int64, at unsafe.Pointer, n uintptr) (unsafe.Pointer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, err := d.linux.mmap(fd, off, at, n)
	if err == nil && at == nil {
		d.views[uintptr(p)] = n
	}
	return p, err
}

func (d *double) reserve(n uintptr) (unsafe.Pointer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, err := d.linux.reserve(n)
	if err == nil {
		d.views[uintptr(p)] = n
	}
	return p, err
}

func (d *double) munmap(at unsafe.Pointer, n uintptr) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.views[uintptr(at)] != n {
		d.note("%d bytes were unmapped where %d were mapped", n, d.views[uintptr(at)])
	}
	delete(d.views, uintptr(at))
	return d.linux.munmap(at, n)
}

// pull takes the function, and its group, out of the container: the IOMMU driver goes, and all mappings.
func (d *double) pull() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.typed = false
	clear(d.mapped)
}

// pread answers for one bit of the command register itself, as VFIO does.
func (d *double) pread(fd int, b []byte, off int64) (int, error) {
	n, err := d.linux.pread(fd, b, off)
	if off == testConfig+commandOffset && n == 2 {
		b[1] &^= commandINTx >> 8
	}
	return n, err
}

// signal is the kernel's word by an interrupt.
func (d *double) signal(t *testing.T, index uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, err := unix.Write(d.signals[index], []byte{1, 0, 0, 0, 0, 0, 0, 0})
	require.NoError(t, err)
}

// store writes into the device's file: registers, or configuration space from testConfig.
func (d *double) store(t *testing.T, off int64, b ...byte) {
	_, err := unix.Pwrite(d.device, b, off)
	require.NoError(t, err)
}
