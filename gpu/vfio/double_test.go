package vfio

import (
	"encoding/binary"
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

// mapDMA is what both ways do.
func (d *double) type1Ioctl(request uintptr, arg unsafe.Pointer) error {
	switch request {
	case ioMapDMA:
		m := (*type1Map)(arg)
		return d.mapDMA(m.iova, m.size)
	case ioUnmapDMA:
		u := (*type1Unmap)(arg)
		return d.unmapDMA(u.iova, &u.size)
	}
	return d.type1Info((*type1Info)(arg))
}

// pull takes the function, and its group, out of the container: the IOMMU driver goes, and all mappings.
func (d *double) pull() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.typed = false
	clear(d.mapped)
}

func (d *double) mapDMA(iova, n uint64) error {
	page := uint64(4096)
	for d.pageSizes != 0 && d.pageSizes&page == 0 {
		page <<= 1
	}
	if n == 0 || iova%page != 0 || n%page != 0 || !d.attached {
		return unix.EINVAL
	}
	inside := false
	for _, r := range d.usable {
		inside = inside || iova >= r.First && iova+n-1 <= r.Last
	}
	if !inside {
		d.note("%d bytes at %#x are not in what the IOMMU translates", n, iova)
		return unix.EINVAL
	}
	for at, m := range d.mapped {
		if iova < at+m && at < iova+n {
			return unix.EEXIST
		}
	}
	d.mapped[iova] = n
	return nil
}

func (d *double) unmapDMA(iova uint64, n *uint64) error {
	if d.mapped[iova] != *n {
		d.note("unmapping %d bytes at %#x, where %d are mapped", *n, iova, d.mapped[iova])
		return unix.ENOENT
	}
	delete(d.mapped, iova)
	return nil
}

// pread answers for one bit of the command register itself, as VFIO does.
func (d *double) pread(fd int, b []byte, off int64) (int, error) {
	n, err := d.linux.pread(fd, b, off)
	if off == testConfig+commandOffset && n == 2 {
		b[1] &^= commandINTx >> 8
	}
	return n, err
}

func (d *double) ioctl(fd int, request uintptr, arg unsafe.Pointer) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	what, known := d.files[fd]
	if !known {
		return 0, unix.EBADF
	}
	switch request {
	case ioDeviceGetInfo:
		info := (*deviceInfo)(arg)
		info.flags, info.numRegions, info.numIRQs = deviceFlagReset|deviceFlagPCI, 9, 5
		if d.noReset {
			info.flags = deviceFlagPCI
		}
	case ioGetRegionInfo:
		return 0, d.regionInfo((*regionInfo)(arg))
	case ioSetIRQs:
		set := (*irqSet)(arg)
		// The kernel keeps the eventfd itself, not its number.
		kept, err := unix.FcntlInt(uintptr(set.eventfd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return 0, err
		}
		if old, ok := d.signals[set.index]; ok {
			unix.Close(old)
		}
		d.signals[set.index] = kept
	case ioDeviceFeature:
		req := (*dmaBufRequest)(arg)
		if !d.nodes[iommuNode] || req.flags != featureGet|featureDMABUF {
			return 0, unix.ENOTTY
		}
		return unix.FcntlInt(uintptr(d.device), unix.F_DUPFD_CLOEXEC, 0)

	case ioBindIOMMUFD:
		if d.files[int((*bindIOMMUFD)(arg).iommufd)] != iommuNode {
			return 0, unix.EBADF
		}
	case ioIOASAlloc:
		(*ioasAlloc)(arg).ioas = 7
	case ioAttachPT:
		d.attached = true
	case ioDetachPT:
		if !d.attached {
			d.note("detached twice")
		}
		d.attached = false
	case ioIOASRanges:
		q := (*ioasRanges)(arg)
		room := q.n
		q.n, q.alignment = uint32(len(d.usable)), 4096
		if d.pageSizes != 0 {
			q.alignment = d.pageSizes & -d.pageSizes
		}
		if room < q.n {
			return 0, unix.EMSGSIZE
		}
		copy(unsafe.Slice(*(**interval)(unsafe.Pointer(&q.allowed)), room), d.usable)
	case ioIOASMap:
		m := (*ioasMap)(arg)
		return 0, d.mapDMA(m.iova, m.length)
	case ioIOASMapFile:
		m := (*ioasMapFile)(arg)
		return 0, d.mapDMA(m.iova, m.length)
	case ioIOASUnmap:
		u := (*ioasUnmap)(arg)
		return 0, d.unmapDMA(u.iova, &u.length)

	case ioGroupGetStatus:
		(*groupStatus)(arg).flags = groupViable
	case ioGroupSetContainer:
		if d.files[int(*(*int32)(arg))] != containerNode {
			return 0, unix.EBADF
		}
		d.attached = true
	case ioGroupGetDeviceFD:
		if !d.attached || !d.typed {
			return 0, unix.EINVAL
		}
		return d.dup(d.device, deviceFile)
	case ioIOMMUGetInfo, ioMapDMA, ioUnmapDMA:
		if !d.typed {
			return 0, unix.EINVAL
		}
		return 0, d.type1Ioctl(request, arg)
	default:
		d.note("ioctl %#x on %s", request, what)
		return 0, unix.ENOTTY
	}
	return 0, nil
}

func (d *double) ioctlValue(fd int, request, _ uintptr) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case request == ioGetAPIVersion && d.files[fd] == containerNode:
		return apiVersion, nil
	case request == ioCheckExtension && d.files[fd] == containerNode:
		return 1, nil
	case request == ioSetIOMMU && d.files[fd] == containerNode:
		d.typed = true
		return 0, nil
	case request == ioGroupUnset && d.files[fd] == vfioNodes+"/3":
		if d.has(deviceFile) {
			d.note("the group left its container before its device was closed")
			return 0, unix.EBUSY
		}
		d.attached = false
		return 0, nil
	case request == ioDeviceReset && d.files[fd] == deviceFile:
		return 0, nil
	}
	d.note("ioctl %#x on %q", request, d.files[fd])
	return 0, unix.ENOTTY
}

// withList writes a capability with a list behind an info of head bytes, where it fits into argsz.
func withList(base unsafe.Pointer, argsz *uint32, head uintptr, id uint16, list [][2]uint64) (capOffset uint32) {
	size := uint32(head + unsafe.Sizeof(listCap{}) + 16*uintptr(len(list)))
	room := *argsz
	*argsz = size
	if room < size {
		return 0
	}
	b := unsafe.Slice((*byte)(unsafe.Add(base, head)), size-uint32(head))
	binary.NativeEndian.PutUint16(b, id)
	binary.NativeEndian.PutUint32(b[8:], uint32(len(list)))
	for i, p := range list {
		binary.NativeEndian.PutUint64(b[16+16*i:], p[0])
		binary.NativeEndian.PutUint64(b[24+16*i:], p[1])
	}
	return uint32(head)
}

func (d *double) regionInfo(info *regionInfo) error {
	switch info.index {
	case regionConfig:
		info.size, info.offset = 4096, uint64(testConfig)
	case 0:
		info.size, info.offset, info.flags = testBAR, 0, regionFlagMmap
		if d.sparse != nil {
			info.flags |= regionFlagCaps
			info.capOffset = withList(unsafe.Pointer(info), &info.argsz, unsafe.Sizeof(*info), regionCapAreas, d.sparse)
		}
	default:
		return unix.EINVAL
	}
	return nil
}

func (d *double) type1Info(info *type1Info) error {
	info.flags, info.pageSizes = type1InfoPages|type1InfoCaps, d.pageSizes
	var list [][2]uint64
	for _, r := range d.usable {
		list = append(list, [2]uint64{r.First, r.Last})
	}
	info.capOffset = withList(unsafe.Pointer(info), &info.argsz, unsafe.Sizeof(*info), type1CapRanges, list)
	return nil
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
