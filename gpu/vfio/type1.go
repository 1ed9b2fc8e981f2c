package vfio

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu/vfio/pci"
)

const (
	vfioNodes     = "/dev/vfio"
	containerNode = "/dev/vfio/vfio"
)

func (m machine) offersType1(f *pci.Function) error {
	if err := m.access(containerNode); err != nil {
		return fmt.Errorf("%s: %w: the kernel has no VFIO containers (modprobe vfio_iommu_type1; CONFIG_VFIO_CONTAINER)", containerNode, err)
	}
	if f.Group == "" {
		return fmt.Errorf("%s is in no IOMMU group: the IOMMU is off (intel_iommu=on or amd_iommu=on, and in the firmware)", f.Addr)
	}
	node := filepath.Join(vfioNodes, f.Group)
	if err := m.access(node); err != nil {
		return fmt.Errorf("%s: %w: the kernel has no VFIO groups (CONFIG_VFIO_GROUP)", node, err)
	}
	return nil
}

// container is a VFIO container with one group in it and the type1 IOMMU driver (uapi VFIO_TYPE1v2_IOMMU).
type container struct {
	k     kernel
	fd    int
	group int
	held  bool // the group is in the container

	mu    sync.Mutex
	files map[uint64][]byte // protected by mu: mappings of files for which type1 needs an address, by IOVA
}

func (m machine) openType1(f *pci.Function) (a attachment, err error) {
	a.device = -1
	c := &container{k: m, fd: -1, group: -1, files: map[uint64][]byte{}}
	defer func() {
		if err != nil {
			if a.device >= 0 {
				m.close(a.device)
			}
			c.close()
		}
	}()
	if c.fd, err = m.open(containerNode); err != nil {
		return a, openError(containerNode, f, err)
	}
	version, err := m.ioctlValue(c.fd, ioGetAPIVersion, 0)
	if err != nil {
		return a, fmt.Errorf("%s: VFIO_GET_API_VERSION: %w", containerNode, err)
	}
	if version != apiVersion {
		return a, fmt.Errorf("%s: VFIO's API has version %d; want %d", containerNode, version, apiVersion)
	}
	ok, err := m.ioctlValue(c.fd, ioCheckExtension, extType1v2)
	if err != nil {
		return a, fmt.Errorf("%s: VFIO_CHECK_EXTENSION: %w", containerNode, err)
	}
	if ok != 1 {
		return a, fmt.Errorf("%s: no type1 IOMMU driver: modprobe vfio_iommu_type1", containerNode)
	}
	node := filepath.Join(vfioNodes, f.Group)
	if c.group, err = m.open(node); err != nil {
		return a, openError(node, f, err)
	}
	status := groupStatus{argsz: uint32(unsafe.Sizeof(groupStatus{}))}
	if _, err = m.ioctl(c.group, ioGroupGetStatus, unsafe.Pointer(&status)); err != nil {
		return a, fmt.Errorf("%s: VFIO_GROUP_GET_STATUS: %w", node, err)
	}
	if status.flags&groupViable == 0 {
		return a, fmt.Errorf("IOMMU group %s is not viable: a driver of the kernel's has another device of it; `lanefs bind %s` names it", f.Group, f.Addr)
	}
	fd := int32(c.fd)
	if _, err = m.ioctl(c.group, ioGroupSetContainer, unsafe.Pointer(&fd)); err != nil {
		return a, openError(node, f, fmt.Errorf("VFIO_GROUP_SET_CONTAINER: %w", err))
	}
	c.held = true
	if _, err = m.ioctlValue(c.fd, ioSetIOMMU, extType1v2); err != nil {
		return a, fmt.Errorf("%s: VFIO_SET_IOMMU: %w", containerNode, err)
	}
	name, err := unix.BytePtrFromString(string(f.Addr))
	if err != nil {
		return a, err
	}
	dev, err := m.ioctl(c.group, ioGroupGetDeviceFD, unsafe.Pointer(name))
	if err != nil {
		return a, fmt.Errorf("%s: VFIO_GROUP_GET_DEVICE_FD %s: %w", node, f.Addr, err)
	}
	a.device = dev
	unix.CloseOnExec(dev)
	if a.usable, a.pageSizes, err = c.ranges(); err != nil {
		return a, err
	}
	a.space = c
	return a, nil
}

// ranges reads the usable IOVAs and the page sizes.
func (c *container) ranges() ([]interval, uint64, error) {
	b, err := withCaps(uint32(unsafe.Sizeof(type1Info{})), func(b []byte) (uint32, error) {
		info := (*type1Info)(unsafe.Pointer(&b[0]))
		*info = type1Info{argsz: uint32(len(b))}
		_, err := c.k.ioctl(c.fd, ioIOMMUGetInfo, unsafe.Pointer(info))
		return info.argsz, err
	})
	if err != nil {
		return nil, 0, fmt.Errorf("VFIO_IOMMU_GET_INFO: %w", err)
	}
	info := (*type1Info)(unsafe.Pointer(&b[0]))
	var sizes uint64
	if info.flags&type1InfoPages != 0 {
		sizes = info.pageSizes
	}
	if info.flags&type1InfoCaps != 0 {
		list, err := pairs(b, info.capOffset, type1CapRanges)
		if err != nil {
			return nil, 0, fmt.Errorf("VFIO_IOMMU_GET_INFO: %w", err)
		}
		var usable []interval
		for _, p := range list {
			usable = append(usable, interval{p[0], p[1]})
		}
		if len(usable) > 0 {
			return usable, sizes, nil
		}
	}
	return nil, 0, fmt.Errorf("VFIO_IOMMU_GET_INFO: the kernel does not say which IOVAs are usable (before 5.5)")
}

// mapUser maps memory that the process sees at addr: ordinary pages, and PFN mappings such as another function's BAR or
// a DMA-BUF that allows mmap, which type1 follows.
func (c *container) mapUser(iova, addr, n uint64) error {
	m := type1Map{argsz: uint32(unsafe.Sizeof(type1Map{})), flags: dmaRead | dmaWrite, vaddr: addr, iova: iova, size: n}
	if _, err := c.k.ioctl(c.fd, ioMapDMA, unsafe.Pointer(&m)); err != nil {
		return fmt.Errorf("VFIO_IOMMU_MAP_DMA of %d bytes: %w", n, pinHint(err))
	}
	return nil
}

// mapFile maps the file into the process first: type1 knows addresses only.
func (c *container) mapFile(iova uint64, fd int, _ bool, off, n uint64) error {
	p, err := c.k.mmap(fd, int64(off), nil, uintptr(n))
	if err != nil {
		return fmt.Errorf("type1 maps only what the CPU can address, and this file refuses mmap: %w", err)
	}
	if err := c.mapUser(iova, uint64(uintptr(p)), n); err != nil {
		return errors.Join(err, c.k.munmap(p, uintptr(n)))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.files[iova] = unsafe.Slice((*byte)(p), n)
	return nil
}

func (c *container) unmap(iova, n uint64) error {
	u := type1Unmap{argsz: uint32(unsafe.Sizeof(type1Unmap{})), iova: iova, size: n}
	if _, err := c.k.ioctl(c.fd, ioUnmapDMA, unsafe.Pointer(&u)); err == unix.EINVAL && c.empty() {
		u.size = n
	} else if err != nil {
		return fmt.Errorf("VFIO_IOMMU_UNMAP_DMA of %d bytes at %#x: %w", n, iova, err)
	}
	if u.size != n {
		return fmt.Errorf("VFIO_IOMMU_UNMAP_DMA at %#x: %d bytes were unmapped instead of %d", iova, u.size, n)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.forget(iova)
}

// empty says that the kernel took the group out of the container, as it does when its device is removed. The container's IOMMU
// and its mappings went with it.
func (c *container) empty() bool {
	_, _, err := c.ranges()
	return errors.Is(err, unix.EINVAL)
}

// forget takes a file out of the process. The caller holds mu.
func (c *container) forget(iova uint64) error {
	b := c.files[iova]
	if b == nil {
		return nil
	}
	delete(c.files, iova)
	return c.k.munmap(unsafe.Pointer(&b[0]), uintptr(len(b)))
}

// detach does nothing: the device leaves with its descriptor.
func (*container) detach() error { return nil }

func (c *container) close() error {
	var errs []error
	if c.held {
		// EINVAL: the group's last function was taken out, and with it the kernel took the group out of its container.
		if _, err := c.k.ioctlValue(c.group, ioGroupUnset, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, fmt.Errorf("VFIO_GROUP_UNSET_CONTAINER: %w", err))
		}
		c.held = false
	}
	for _, fd := range []*int{&c.group, &c.fd} {
		if *fd >= 0 {
			errs = append(errs, c.k.close(*fd))
			*fd = -1
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for iova := range c.files {
		errs = append(errs, c.forget(iova))
	}
	return errors.Join(errs...)
}

func (*container) name() string { return string(Type1) }

// keep holds what the kernel reads through a number until here.
func keep(v any) { runtime.KeepAlive(v) }
