package vfio

import (
	"errors"
	"fmt"
	"math/bits"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu/internal/span"
)

// region is a BAR in this process's address space: a reservation of the BAR's size, with those parts mapped that the
// kernel lets us map. On old kernels the page of the MSI-X table is a hole in it.
type region struct {
	k      kernel
	mem    []byte     // its capacity is whole pages, which a GPU's driver registers
	offset int64      // of the BAR in the device's file
	areas  []interval // mapped, as offsets, both ends included
}

// mapRegion maps BAR index of the device.
func mapRegion(k kernel, fd, index int) (*region, error) {
	b, err := withCaps(uint32(unsafe.Sizeof(regionInfo{})), func(b []byte) (uint32, error) {
		info := (*regionInfo)(unsafe.Pointer(&b[0]))
		*info = regionInfo{argsz: uint32(len(b)), index: uint32(index)}
		_, err := k.ioctl(fd, ioGetRegionInfo, unsafe.Pointer(info))
		return info.argsz, err
	})
	if err != nil {
		return nil, fmt.Errorf("BAR %d: VFIO_DEVICE_GET_REGION_INFO: %w", index, err)
	}
	info := (*regionInfo)(unsafe.Pointer(&b[0]))
	var sparse [][2]uint64
	if info.flags&regionFlagCaps != 0 {
		if sparse, err = pairs(b, info.capOffset, regionCapAreas); err != nil {
			return nil, fmt.Errorf("BAR %d: %w", index, err)
		}
	}
	areas, err := mappable(info.size, info.flags&regionFlagMmap != 0, sparse, uint64(k.pageSize()))
	if err != nil {
		return nil, fmt.Errorf("BAR %d: %w", index, err)
	}
	p, err := k.reserve(uintptr(info.size))
	if err != nil {
		return nil, fmt.Errorf("BAR %d: %d bytes of address space: %w", index, info.size, err)
	}
	pages := span.RoundUp(int64(info.size), k.pageSize())
	r := &region{k: k, mem: unsafe.Slice((*byte)(p), pages)[:info.size], offset: int64(info.offset), areas: areas}
	for _, a := range areas {
		_, err := k.mmap(fd, r.offset+int64(a.First), unsafe.Pointer(&r.mem[a.First]), uintptr(a.Last-a.First+1))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("BAR %d: mapping %d bytes from offset %#x: %w", index, a.Last-a.First+1, a.First, err), r.unmap())
		}
	}
	return r, nil
}

// mappable is which parts of a BAR can be mapped: the sparse areas where the kernel names any, else all of it. Of a BAR that is smaller than a page the
// kernel maps the page, if nothing else is in it (vfio_pci_probe_mmaps in Linux's vfio_pci_core.c): with pages of 64 KiB that is the case of most drives.
func mappable(size uint64, mmap bool, sparse [][2]uint64, page uint64) ([]interval, error) {
	switch {
	case size == 0:
		return nil, errors.New("the function has no such BAR, or it has no address: the firmware found no room for it")
	case !mmap && size < page:
		return nil, fmt.Errorf("%d bytes that the kernel does not let us map: they do not have a page of %d bytes to themselves (the kernel's parameter pci=resource_alignment=%d@ADDRESS gives them one)",
			size, page, bits.TrailingZeros64(page))
	case !mmap || size%min(page, 4096) != 0 || size > page && size%page != 0:
		return nil, fmt.Errorf("%d bytes that the kernel does not let us map", size)
	case sparse == nil:
		return []interval{{0, size - 1}}, nil
	}
	var areas []interval
	for _, a := range sparse {
		off, n := a[0], a[1]
		if n == 0 {
			continue
		}
		if off%page != 0 || n%page != 0 || off > size || n > size-off {
			return nil, fmt.Errorf("of %d bytes the kernel lets us map %d from offset %#x, which cannot be", size, n, off)
		}
		areas = append(areas, interval{off, off + n - 1})
	}
	return areas, nil
}

// mapped says whether n bytes at off are in a mapped part.
func (r *region) mapped(off, n int64) bool {
	for _, a := range r.areas {
		if uint64(off) >= a.First && uint64(off+n-1) <= a.Last {
			return true
		}
	}
	return false
}

// abandon puts memory of our own, all ones, in the BAR's place: at the same addresses, and in one step, since
// lanes may be storing there at the same time.
func (r *region) abandon() error {
	var errs []error
	for _, a := range r.areas {
		n := uintptr(a.Last - a.First + 1)
		dead, err := unix.MmapPtr(-1, 0, nil, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		b := unsafe.Slice((*byte)(dead), n)
		for i := range b {
			b[i] = 0xff
		}
		// mremap replaces what is mapped at the target at once.
		_, err = unix.MremapPtr(dead, n, unsafe.Pointer(&r.mem[a.First]), n, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (r *region) unmap() error {
	if r == nil || r.mem == nil {
		return nil
	}
	b := r.mem
	r.mem, r.areas = nil, nil
	return r.k.munmap(unsafe.Pointer(&b[0]), uintptr(len(b)))
}
