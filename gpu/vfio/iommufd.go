package vfio

import (
	"errors"
	"fmt"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu/vfio/pci"
)

const (
	iommuNode   = "/dev/iommu"
	deviceNodes = "/dev/vfio/devices"
)

func (m machine) offersIOMMUFD(f *pci.Function) error {
	if err := m.access(iommuNode); err != nil {
		return fmt.Errorf("%s: %w: the kernel has no IOMMUFD (CONFIG_IOMMUFD)", iommuNode, err)
	}
	if f.VFIODevice() == "" {
		return fmt.Errorf("%s has no node for %s: the kernel has no VFIO character devices (CONFIG_VFIO_DEVICE_CDEV)", deviceNodes, f.Addr)
	}
	return nil
}

// ioas is an I/O address space of IOMMUFD (uapi IOMMU_IOAS_ALLOC).
type ioas struct {
	k        kernel
	fd       int // /dev/iommu; its end is the end of all that was made with it
	id       uint32
	device   int
	attached bool
}

// openIOMMUFD binds the function to a new address space. What fails half way is undone by closing the descriptors: the
// kernel holds nothing beyond them.
func (m machine) openIOMMUFD(f *pci.Function) (a attachment, err error) {
	a.device = -1
	s := &ioas{k: m, fd: -1, device: -1}
	defer func() {
		if err != nil {
			if a.device >= 0 {
				m.close(a.device)
			}
			s.close()
		}
	}()
	path := filepath.Join(deviceNodes, f.VFIODevice())
	if a.device, err = m.open(path); err != nil {
		return a, openError(path, f, err)
	}
	if s.fd, err = m.open(iommuNode); err != nil {
		return a, openError(iommuNode, f, err)
	}
	bind := bindIOMMUFD{argsz: uint32(unsafe.Sizeof(bindIOMMUFD{})), iommufd: int32(s.fd)}
	if _, err = m.ioctl(a.device, ioBindIOMMUFD, unsafe.Pointer(&bind)); err != nil {
		return a, openError(path, f, fmt.Errorf("VFIO_DEVICE_BIND_IOMMUFD: %w", err))
	}
	alloc := ioasAlloc{size: uint32(unsafe.Sizeof(ioasAlloc{}))}
	if _, err = m.ioctl(s.fd, ioIOASAlloc, unsafe.Pointer(&alloc)); err != nil {
		return a, fmt.Errorf("IOMMU_IOAS_ALLOC: %w", err)
	}
	s.id = alloc.ioas
	attach := attachPT{argsz: uint32(unsafe.Sizeof(attachPT{})), ptID: s.id}
	if _, err = m.ioctl(a.device, ioAttachPT, unsafe.Pointer(&attach)); err != nil {
		return a, fmt.Errorf("VFIO_DEVICE_ATTACH_IOMMUFD_PT: %w", err)
	}
	s.device, s.attached = a.device, true
	if a.usable, a.pageSizes, err = s.ranges(); err != nil {
		return a, err
	}
	a.space = s
	return a, nil
}

// openError adds what can be done about it.
func openError(path string, f *pci.Function, err error) error {
	switch {
	case errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EINVAL) && f.Driver == pci.VFIO && busy(f):
		return fmt.Errorf("%s: %w: another program has it%s", path, err, userList(f))
	case errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM):
		return fmt.Errorf("%s: %w: its group may open it; docs/HARDWARE.md has a udev rule that sets the group", path, err)
	}
	return fmt.Errorf("%s: %w", path, err)
}

func busy(f *pci.Function) bool {
	users, _ := f.Users()
	return len(users) > 0
}

func userList(f *pci.Function) string {
	users, _ := f.Users()
	if len(users) == 0 {
		return ""
	}
	return ": " + users[0].String()
}

// ranges asks which IOVAs can be mapped with the device attached, and in what unit.
func (s *ioas) ranges() ([]interval, uint64, error) {
	n := uint32(16)
	for {
		list := make([]interval, n)
		q := ioasRanges{size: uint32(unsafe.Sizeof(ioasRanges{})), ioas: s.id, n: n,
			allowed: uint64(uintptr(unsafe.Pointer(&list[0])))}
		_, err := s.k.ioctl(s.fd, ioIOASRanges, unsafe.Pointer(&q))
		keep(list)
		if errors.Is(err, unix.EMSGSIZE) && q.n > n && q.n <= ioasRangesLimit {
			n = q.n
			continue
		}
		if err != nil {
			return nil, 0, fmt.Errorf("IOMMU_IOAS_IOVA_RANGES: %w", err)
		}
		return list[:q.n], q.alignment, nil
	}
}

func (s *ioas) mapUser(iova, addr, n uint64) error {
	m := ioasMap{size: uint32(unsafe.Sizeof(ioasMap{})), flags: mapFixedRW, ioas: s.id, userVA: addr, length: n, iova: iova}
	if _, err := s.k.ioctl(s.fd, ioIOASMap, unsafe.Pointer(&m)); err != nil {
		return fmt.Errorf("IOMMU_IOAS_MAP of %d bytes: %w", n, pinHint(err))
	}
	return nil
}

func (s *ioas) mapFile(iova uint64, fd int, dmabuf bool, off, n uint64) error {
	m := ioasMapFile{size: uint32(unsafe.Sizeof(ioasMapFile{})), flags: mapFixedRW, ioas: s.id, fd: int32(fd),
		start: off, length: n, iova: iova}
	_, err := s.k.ioctl(s.fd, ioIOASMapFile, unsafe.Pointer(&m))
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOTTY):
		return errNoMapFile
	case dmabuf:
		return fmt.Errorf("IOMMU_IOAS_MAP_FILE of %d bytes of a DMA-BUF: %w: "+
			"Linux 7.2 takes DMA-BUFs of VFIO only, and others where their driver has the patches for it (lanefs doctor)", n, err)
	}
	return fmt.Errorf("IOMMU_IOAS_MAP_FILE of %d bytes: %w", n, pinHint(err))
}

// errNoMapFile is an old kernel's answer; the caller maps by user address where it has one.
var errNoMapFile = errors.New("IOMMU_IOAS_MAP_FILE: the kernel does not know it (before 6.13)")

func (s *ioas) unmap(iova, n uint64) error {
	u := ioasUnmap{size: uint32(unsafe.Sizeof(ioasUnmap{})), ioas: s.id, iova: iova, length: n}
	if _, err := s.k.ioctl(s.fd, ioIOASUnmap, unsafe.Pointer(&u)); err != nil {
		return fmt.Errorf("IOMMU_IOAS_UNMAP of %d bytes at %#x: %w", n, iova, err)
	}
	if u.length != n {
		return fmt.Errorf("IOMMU_IOAS_UNMAP at %#x: %d bytes were unmapped instead of %d", iova, u.length, n)
	}
	return nil
}

func (s *ioas) detach() error {
	if !s.attached {
		return nil
	}
	s.attached = false
	d := detachPT{argsz: uint32(unsafe.Sizeof(detachPT{}))}
	if _, err := s.k.ioctl(s.device, ioDetachPT, unsafe.Pointer(&d)); err != nil {
		return fmt.Errorf("VFIO_DEVICE_DETACH_IOMMUFD_PT: %w", err)
	}
	return nil
}

func (s *ioas) close() error {
	if s.fd < 0 {
		return nil
	}
	err := s.k.close(s.fd)
	s.fd = -1
	return err
}

func (*ioas) name() string { return string(IOMMUFD) }
